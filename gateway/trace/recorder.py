"""Begins the trace of each call, and at its end keeps it and logs one line about it.

Front doors run their calls inside `call`. Only calls that generate are kept and logged. A line
never has a prompt or an output in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.access.readers import Readers, client_at_hand
from gateway.trace.config import NO_TRACES, TraceConfig
from gateway.trace.report import facts as about
from gateway.trace.report import part_totals, seconds
from gateway.trace.request_trace import RequestTrace, bound
from gateway.trace.span_export import SpanExport
from gateway.trace.store import TraceStore
from pagewire.kit import context
from pagewire.kit.logs import get_logger
from pagewire.kit.spans import NO_SPANS, Spans

log = get_logger("gateway.request")


class TraceRecorder:
    """Used from one event loop."""

    def __init__(self, config: TraceConfig = NO_TRACES, spans: Spans = NO_SPANS) -> None:
        self._spans = spans
        self.exported = SpanExport(spans)
        """Makes spans of traces that have ended, in a task of the composition root."""
        self.store = TraceStore(config)
        self.readers = Readers(config.trace_readers)
        """Who may read whose traces."""

    @contextmanager
    def call(self, *, joins_trace: bool) -> Iterator[RequestTrace]:
        """Follow the call whose ids are bound; `end` comes inside, at its end.

        Args:
            joins_trace: The client sent a traceparent, so that this is a part of its trace.
        """
        with_outputs = self.store.is_on or self._spans.is_on
        trace = RequestTrace(context.request_id() or "", with_outputs=with_outputs)
        parent = context.traceparent() or "" if joins_trace else ""
        trace.span = self._spans.open("llm_request", parent, trace.created_ns)
        with bound(trace), context.bind(traceparent=trace.span.traceparent or None):
            yield trace

    def end(self, trace: RequestTrace, route: str, status: int | str) -> None:
        """Keep and log a call that has ended.

        Args:
            trace: As `call` gave it.
            route: Of the HTTP API, or the method's name.
            status: The HTTP status, or the name of the gRPC code.
        """
        if not trace.is_generation:
            return
        trace.close()
        trace.client = client_at_hand()
        trace.facts = {"route": route, "status": status, **trace.facts}
        self.store.add(trace)
        self.exported.add(trace)
        parts = part_totals(trace) if trace.follows_outputs else {}
        first_ns = trace.first_output_ns
        log.info(
            "request",
            **about(trace),
            e2e_s=seconds(trace.duration_ns),
            time_to_first_token_s=None if first_ns is None else seconds(first_ns - trace.start_ns),
            parts_ms={name: round(ns / 1e6, 3) for name, ns in parts.items()},
        )
