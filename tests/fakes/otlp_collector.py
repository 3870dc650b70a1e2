"""An OTLP collector: takes spans over gRPC, as OpenTelemetry's own does, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """What one service said."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it begins the trace."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Its methods are called on any thread."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._spans: list[CollectedSpan] = []
        self._changed = threading.Condition(threading.RLock())

    def Export(self, request: Any, context: Any) -> Any:
        with self._changed:
            for group in request.resource_spans:
                service = _attributes(group.resource.attributes)["service.name"]
                for scope in group.scope_spans:
                    self._spans += [_span(service, span) for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[CollectedSpan]:
        with self._changed:
            return [span for span in self._spans if span.trace_id == trace_id]

    @property
    def trace_ids(self) -> set[str]:
        with self._changed:
            return {span.trace_id for span in self._spans}

    def wait(self, is_enough: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until enough has come."""
        with self._changed:
            assert self._changed.wait_for(is_enough, timeout_s), self._spans


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector at a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _span(service: str, span: Any) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
