"""Follows every call of the public gRPC API, as `gateway.http.scope` does those over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import grpc

from gateway.trace.recorder import TraceRecorder
from pagewire.kit import context
from pagewire.kit.errors import PagewireError
from pagewire.kit.rpc_handlers import Context, Handler, wrap_handler

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Comes after those that bind ids and map errors."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        return wrap_handler(handler, lambda call: self._followed(method, call))

    @asynccontextmanager
    async def _followed(self, method: str, call: Context) -> AsyncIterator[None]:
        status = "OK"
        joins_trace = context.joins_trace(call.invocation_metadata() or ())
        with self._recorder.call(joins_trace=joins_trace) as trace:
            try:
                yield
            except BaseException as exc:
                status = _status(exc)
                raise
            finally:
                self._recorder.end(trace, method, status)


def _status(exc: BaseException) -> str:
    if isinstance(exc, asyncio.CancelledError):
        return "CANCELLED"
    return exc.code.name if isinstance(exc, PagewireError) else "INTERNAL"
