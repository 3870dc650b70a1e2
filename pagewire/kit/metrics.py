"""Prometheus metrics of a service: its registry, the RPC metrics, the HTTP port they are read on.

Exposition runs in a thread of its own, off the event loop. Each `ServiceServer` has one registry,
so that several servers fit into one process; a service registers its own metrics there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.metric_families import PREFIX

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

# From a cheap unary call to a long generation.
_DURATION_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def new_registry() -> CollectorRegistry:
    """Return a registry with the figures of the process and its garbage collector."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class RpcMetrics:
    """Counts and times RPCs; one observation a call, none a message.

    Label values are bounded: methods are those registered, codes are gRPC's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.num_handled = 0
        """RPCs that ended."""
        self.last_s = 0.0
        """When one began or ended last, by the monotonic clock; 0: none has."""
        handled = Counter(
            f"{PREFIX}rpc_handled", "RPCs that ended.", ["method", "code"], registry=registry
        )
        duration = Histogram(
            f"{PREFIX}rpc_duration_seconds",
            "Time from the start of an RPC to its end.",
            ["method"],
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )
        in_flight = Gauge(
            f"{PREFIX}rpc_in_flight", "RPCs that run now.", ["method"], registry=registry
        )
        # The library takes a lock and makes texts at each look.
        self._handled_of = cache(handled.labels)
        self._duration_of = cache(duration.labels)
        self._in_flight_of = cache(in_flight.labels)

    @contextmanager
    def in_flight(self, method: str) -> Iterator[None]:
        gauge = self._in_flight_of(method)
        gauge.inc()
        self.last_s = time.monotonic()
        try:
            yield
        finally:
            gauge.dec()
            self.last_s = time.monotonic()

    def handled(self, method: str, code: str, duration_s: float) -> None:
        self.num_handled += 1
        self._handled_of(method, code).inc()
        self._duration_of(method).observe(duration_s)


class MetricsServer:
    """Serves a registry over HTTP at `/metrics` from its own thread."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @classmethod
    def start(cls, registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
        """Bind and serve; port 0 takes any free one.

        Raises:
            FailedPreconditionError: The port cannot be had.
        """
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as exc:
            message = f"cannot serve metrics on {host}:{port}: {exc.strerror or 'no such address'}"
            hint = f"{message}; change --metrics-port or --metrics-host"
            raise FailedPreconditionError(hint, reason="ADDRESS_IN_USE") from exc
        server.set_app(_in_plain_text(registry))
        return cls(server, thread)

    async def stop(self) -> None:
        """Stop serving; idempotent."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _in_plain_text(registry: CollectorRegistry) -> WSGIApplication:
    """Return the exposition in Prometheus's text format, whatever is asked for.

    In the library's OpenMetrics form the colon of our names becomes an underscore.
    """
    app: WSGIApplication = make_wsgi_app(registry)

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ.pop("HTTP_ACCEPT", None)
        return app(environ, start_response)

    return serve
