"""How many requests' traces are kept, and who may read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Where the time of requests went: GET /v1/requests."""

    trace_requests: int = 256
    """Traces kept of the last requests; 0: none, and no request is followed through the engines."""
    trace_slowest: int = 32
    """Traces kept of the slowest requests of the last hour besides."""
    trace_readers: tuple[str, ...] = ()
    """Clients (names of their keys) that may read every client's traces, and figures in /metrics of
    the HTTP API; others read their own."""

    def __post_init__(self) -> None:
        for name in ("trace_requests", "trace_slowest"):
            if not 0 <= getattr(self, name) <= 100_000:
                raise ValueError(name, getattr(self, name), "must be between 0 and 100000")


NO_TRACES = TraceConfig(trace_requests=0)
