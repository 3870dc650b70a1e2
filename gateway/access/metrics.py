"""What is counted about clients, by the names of their keys; never by the keys."""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from pagewire.kit.metric_families import PREFIX


class ClientMetrics:
    """Metrics by client; their labels are bounded by the number of keys."""

    def __init__(self, registry: CollectorRegistry) -> None:
        admitted = Counter(
            f"{PREFIX}client_requests", "Requests admitted, by client.", ["client"],
            registry=registry,
        )  # fmt: skip
        running = Gauge(
            f"{PREFIX}client_requests_running", "Requests that run now, by client.", ["client"],
            registry=registry,
        )  # fmt: skip
        self._refused = Counter(
            f"{PREFIX}client_refusals", "Requests over a limit of their client, by limit.",
            ["client", "reason"], registry=registry,
        )  # fmt: skip
        tokens = Counter(
            f"{PREFIX}client_tokens", "Tokens of ended requests, by client.", ["client", "kind"],
            registry=registry,
        )  # fmt: skip
        self._unauthenticated = Counter(
            f"{PREFIX}unauthenticated", "Requests without a valid API key.", registry=registry
        )
        # The library takes a lock and makes texts at each look.
        self._admitted_of = cache(admitted.labels)
        self._running_of = cache(running.labels)
        self._tokens_of = cache(tokens.labels)

    def started(self, client: str) -> None:
        self._admitted_of(client).inc()
        self._running_of(client).inc()

    def ended(self, client: str) -> None:
        self._running_of(client).dec()

    def refused(self, client: str, reason: str) -> None:
        self._refused.labels(client, reason).inc()

    def used(self, client: str, prompt_tokens: int, generation_tokens: int) -> None:
        self._tokens_of(client, "prompt").inc(prompt_tokens)
        self._tokens_of(client, "generation").inc(generation_tokens)

    def unauthenticated(self) -> None:
        self._unauthenticated.inc()
