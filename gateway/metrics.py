"""What the gateway counts and times about requests, under vLLM's names with our prefix."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.generation import Usage

_LATENCY_BUCKETS_S = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class GatewayMetrics:
    """Metrics of one gateway; nothing here is updated per token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.num_live_outputs = Gauge(
            "pagewire_gateway_live_outputs", "Outputs being generated now.", registry=registry
        )
        self.time_to_first_token = Histogram(
            "pagewire_time_to_first_token_seconds",
            "From arrival to the first text or tokens of a request.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.e2e_latency = Histogram(
            "pagewire_e2e_request_latency_seconds",
            "From arrival to the end of a request that finished.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "pagewire_prompt_tokens", "Prompt tokens of ended requests.", registry=registry
        )
        self._generation_tokens = Counter(
            "pagewire_generation_tokens", "Output tokens of ended requests.", registry=registry
        )
        self._finished = Counter(
            "pagewire_request_success",
            "Outputs that finished, by reason.",
            ["finished_reason"],
            registry=registry,
        )
        self._http_requests = Counter(
            "pagewire_http_requests", "HTTP answers.", ["route", "status"], registry=registry
        )

    def finished(self, reason: str) -> None:
        self._finished.labels(reason).inc()

    def ended(self, usage: Usage) -> None:
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._generation_tokens.inc(usage.completion_tokens)

    def http_refused(self, status: int) -> None:
        """Count an answer to what never reached a route."""
        self.http_answer("none", status)

    def http_answer(self, route: str, status: int) -> None:
        """Count an answer; `route` is one of the routes, never a client's path."""
        self._http_requests.labels(route, str(status)).inc()
