"""OpenTelemetry spans of requests, for services that are told where to send them.

Without an endpoint nothing is made and nothing of OpenTelemetry is imported. Spans hang on the W3C
traceparent of a request, which the kit carries anyway; whether a trace is sampled is decided where
it begins and honoured everywhere else. Times are Unix nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TypeAlias

import grpc

from pagewire.kit import context
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.rpc_handlers import Handler, wrap_handler

Attributes: TypeAlias = "Mapping[str, str | int | float | bool]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


class OpenSpan:
    """A span that others hang on before it ends; this one is of no trace."""

    traceparent = ""
    """For those below it; empty: the request's own stays."""

    def end(self, end_ns: int, attributes: Attributes, error: str = "") -> None:
        """Send it. One that is never ended is never sent."""


class Spans:
    """Takes spans and sends none."""

    is_on = False

    def open(self, name: str, traceparent: str, start_ns: int) -> OpenSpan:
        """Begin a span.

        Args:
            name: What is done.
            traceparent: What it is a part of; empty: it begins a trace.
            start_ns: When it began.
        """
        return OpenSpan()

    def record(
        self, name: str, traceparent: str, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        """Send a span that has ended; of a trace that is not sampled nothing is sent."""

    async def close(self) -> None:
        """Send what waits, within a bounded time; idempotent."""


NO_SPANS = Spans()


def open_spans(service: str, endpoint: str | None) -> Spans:
    """Return where a service's spans go.

    Args:
        service: Its name; `pagewire-` comes before it.
        endpoint: OTLP over gRPC, as a URL; None: nowhere.

    Raises:
        FailedPreconditionError: OpenTelemetry is not installed.
    """
    if endpoint is None:
        return NO_SPANS
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise FailedPreconditionError(
            "--otlp-traces-endpoint needs OpenTelemetry: run `pip install 'pagewire[otlp]'`",
            reason="MISSING_PACKAGE",
        )
    # Only now: it takes a while to import.
    from pagewire.kit.otlp import OtlpSpans

    return OtlpSpans(f"pagewire-{service}", endpoint)


def is_sampled(traceparent: str) -> bool:
    """Say whether spans of this trace are sent.

    Args:
        traceparent: A valid one, or empty: it is of no trace.
    """
    return traceparent != "" and bool(int(traceparent[-2:], 16) & 1)


def check_endpoint(endpoint: str | None) -> None:
    """Refuse what is no endpoint.

    Raises:
        ValueError: With (name, value, rule).
    """
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        rule = "must be a URL such as http://localhost:4317"
        raise ValueError("otlp_traces_endpoint", endpoint, rule)


class SpanInterceptor(grpc.aio.ServerInterceptor):
    """Makes a span of each call that is a part of a sampled trace.

    Comes after the kit's own. Streams that carry many requests belong to none of their traces.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not self._spans.is_on:
            return handler
        method = str(handler_call_details.method).rpartition("/")[2]
        return wrap_handler(handler, lambda _: self._span(method))

    @asynccontextmanager
    async def _span(self, method: str) -> AsyncIterator[None]:
        start_ns = time.time_ns()
        try:
            yield
        finally:
            ids = {"request.id": context.request_id() or ""}
            traceparent = context.traceparent() or ""
            self._spans.record(method, traceparent, start_ns, time.time_ns(), ids)
