"""`Spans` that go to an OTLP collector. Imported only where an endpoint is set.

The SDK's own thread sends them in batches from a bounded queue; when that is full, spans are
dropped. Nothing here makes an event loop wait.
"""

from __future__ import annotations

import asyncio

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from pagewire import __version__
from pagewire.kit.spans import Attributes, OpenSpan, Spans

_CLOSE_TIMEOUT_S = 3.0
_EXPORT_TIMEOUT_S = 5.0


class OtlpSpans(Spans):
    """Sampling is as the environment says (`OTEL_TRACES_SAMPLER`), by default as the parent's."""

    is_on = True

    def __init__(self, service_name: str, endpoint: str) -> None:
        """Prepare; the endpoint need not be there yet.

        Args:
            service_name: In what is sent.
            endpoint: A URL; http: without TLS.
        """
        resource = Resource.create({SERVICE_NAME: service_name, "service.version": __version__})
        # Our own shutdown ends it: at the interpreter's end there is nobody left to wait for.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pagewire", __version__)
        self._is_closed = False

    def open(self, name: str, traceparent: str, start_ns: int) -> OpenSpan:
        span = self._tracer.start_span(
            name, _context(traceparent), SpanKind.SERVER, start_time=start_ns
        )
        return _OtlpSpan(span)

    def record(
        self, name: str, traceparent: str, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        parent = _context(traceparent)
        span = self._tracer.start_span(
            name, parent, SpanKind.INTERNAL, attributes, start_time=start_ns
        )
        span.end(max(start_ns, end_ns))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._provider.force_flush(int(_CLOSE_TIMEOUT_S * 1000))
        self._provider.shutdown()


class _OtlpSpan(OpenSpan):
    """A span of the SDK."""

    def __init__(self, span: Span) -> None:
        self._span = span
        at = span.get_span_context()
        if not at.is_valid:
            return  # the environment has switched the SDK off
        self.traceparent = f"00-{at.trace_id:032x}-{at.span_id:016x}-{int(at.trace_flags):02x}"

    def end(self, end_ns: int, attributes: Attributes, error: str = "") -> None:
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(end_ns)


def _context(traceparent: str) -> Context:
    """Return the parent's context; a root has an empty one, whatever the thread has."""
    if not traceparent:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    at = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(at), Context())
