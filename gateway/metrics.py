"""What the gateway counts beside its replicas: requests, answers over HTTP, calls of tools.

Names are vLLM's with our prefix. Those of HTTP have none, as with vLLM: they are those of the
instrumentation that FastAPI servers use.
"""

from __future__ import annotations

import time
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.request_metrics import RequestMetrics
from pagewire.kit.metric_families import PREFIX

UNCOUNTED_ROUTES = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
"""Asked for again and again by machines."""

_HTTP_DURATION_S = (0.1, 0.5, 1.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class GatewayMetrics:
    """Metrics of one gateway. What it counts for each token is in `requests`, in plain numbers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = RequestMetrics()
        registry.register(self.requests)
        self.num_live_outputs = Gauge(
            f"{PREFIX}gateway_live_outputs", "Outputs being generated now.", registry=registry
        )
        self._tool_calls = Counter(
            f"{PREFIX}tool_call_parser_invocations",
            "Outputs that were read for calls of tools.",
            ["model_name", "mode", "outcome", "request_type"],
            registry=registry,
        )
        http_requests = Counter(
            "http_requests", "HTTP requests.", ["method", "handler", "status"], registry=registry
        )
        http_duration = Histogram(
            "http_request_duration_seconds",
            "From a request's head to the end of its answer.",
            ["method", "handler"],
            buckets=_HTTP_DURATION_S,
            registry=registry,
        )
        http_responses = Counter(
            f"{PREFIX}http_responses",
            "HTTP answers by their exact status.",
            ["handler", "status"],
            registry=registry,
        )
        self.last_http_s = 0.0
        """When an HTTP answer ended last, by the monotonic clock; 0: none has."""
        # The library takes a lock and makes texts at each look.
        self._http_requests_of = cache(http_requests.labels)
        self._http_duration_of = cache(http_duration.labels)
        self._http_responses_of = cache(http_responses.labels)

    def tool_calls_read(
        self, model_name: str, *, streamed: bool, has_calls: bool, request_type: str
    ) -> None:
        """Count an output whose text was read for calls.

        Args:
            model_name: As in answers.
            streamed: Whether it was read as it came.
            has_calls: Whether any was found.
            request_type: chat_completions, responses or other.
        """
        mode = "streaming" if streamed else "non_streaming"
        outcome = "tool_call" if has_calls else "no_tool_call"
        self._tool_calls.labels(model_name, mode, outcome, request_type).inc()

    def http_refused(self, status: int) -> None:
        """Count an answer to what never reached a route."""
        self.http_answer("none", "none", status, 0.0)

    def http_answer(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count an answer.

        Args:
            method: Of the request; anything that no route knows counts as one.
            route: One of the routes, never a client's path.
            status: 0: there was no answer.
            duration_s: From the request's head to the end of the answer.
        """
        self.last_http_s = time.monotonic()
        if route in UNCOUNTED_ROUTES:
            return
        method = method if method in _METHODS else "none"
        self._http_requests_of(method, route, f"{status // 100}xx").inc()
        self._http_duration_of(method, route).observe(duration_s)
        self._http_responses_of(route, str(status)).inc()
