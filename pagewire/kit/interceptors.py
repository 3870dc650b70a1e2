"""What every RPC of every service passes through: ids, a log line, metrics, error mapping.

`server_interceptors` gives them in order; a service's own (authentication, admission) come after
them, so that what those raise is mapped as well. They read no messages.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeAlias

import grpc

from pagewire.kit import context as request_context
from pagewire.kit.errors import (
    InternalError,
    PagewireError,
    ServiceUnavailableError,
    abort_with,
    from_rpc_error,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.metrics import RpcMetrics
from pagewire.kit.rpc_handlers import Context, Handler, refuse_undecodable, wrap_handler
from pagewire.kit.rust_panics import RustPanicsRaised

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"

# Probes come every few seconds from everybody.
_UNLOGGED_PREFIXES = ("/grpc.health.", "/grpc.reflection.")
_OUR_FAULT = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}

log = get_logger("pagewire.rpc")


def server_interceptors(metrics: RpcMetrics) -> list[grpc.aio.ServerInterceptor]:
    """Return the interceptors of every server, outermost first."""
    return [ScopeInterceptor(metrics), ErrorInterceptor()]


class ScopeInterceptor(grpc.aio.ServerInterceptor):
    """Binds request id and trace context for the call; counts, times and logs how it ended."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        return wrap_handler(handler, lambda context: self._scope(method, context))

    @asynccontextmanager
    async def _scope(self, method: str, context: Context) -> AsyncIterator[None]:
        ids = request_context.ids_from_metadata(context.invocation_metadata() or ())
        started_s = time.monotonic()
        with request_context.bind(**ids), self._metrics.in_flight(method):
            cancelled = False
            try:
                yield
            except asyncio.CancelledError:
                cancelled = True
                raise
            finally:
                code = "CANCELLED" if cancelled else _code_name(context)
                duration_s = time.monotonic() - started_s
                self._metrics.handled(method, code, duration_s)
                _log_end(method, code, duration_s)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions into statuses; nothing of an unexpected one reaches the client."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        try:
            handler = await continuation(handler_call_details)
        except Exception as exc:  # an interceptor after this one refused the call, or has a bug
            handler = _raising_handler(exc)
        if handler is None:
            return None
        readable = refuse_undecodable(handler)
        return wrap_handler(readable, lambda context: _mapped_errors(method, context))


@asynccontextmanager
async def _mapped_errors(method: str, context: Context) -> AsyncIterator[None]:
    try:
        with RustPanicsRaised():
            yield
    except grpc.aio.AbortError:
        raise
    except asyncio.CancelledError as exc:
        if _is_call_cancelled():
            raise
        # Something that the handler awaited was cancelled. Passed on, it would leave the client
        # waiting: gRPC takes it for the end of the call and sends no status.
        log.warning("rpc_work_cancelled", method=method, exc_info=exc)
        error = ServiceUnavailableError("the work for this call was given up; try again")
        await _abort(context, error)
    except Exception as exc:
        if _is_call_cancelled():
            # There is nobody to tell; only our own logs want to know of a failing cleanup.
            log.info("rpc_failed_after_cancel", method=method, exc_info=exc)
            raise asyncio.CancelledError from exc
        await _abort(context, _to_error(method, exc))


def _is_call_cancelled() -> bool:
    """Say whether gRPC has cancelled the handler: client gone, deadline, or the server's end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _abort(context: Context, error: PagewireError) -> NoReturn:
    try:
        await abort_with(context, error)
    except grpc.aio.InternalError as exc:
        raise asyncio.CancelledError from exc  # the transport is lost, and the client with it


def _to_error(method: str, exc: Exception) -> PagewireError:
    if isinstance(exc, PagewireError):
        return exc
    if isinstance(exc, grpc.aio.AioRpcError):
        log.info("peer_call_failed", method=method, code=exc.code().name, details=exc.details())
        return from_rpc_error(exc)
    error_id = secrets.token_hex(8)
    if isinstance(exc, grpc.aio.InternalError):  # mostly a client that left a moment ago
        log.warning("rpc_transport_failed", method=method, error_id=error_id, exc_info=exc)
    else:
        log.error("rpc_bug", method=method, error_id=error_id, exc_info=exc)
    message = f"internal error; the logs have more under error id {error_id}"
    return InternalError(message, metadata={"error_id": error_id})


def _raising_handler(exc: Exception) -> Handler:
    # Let go of when it is raised: its traceback will lead back here.
    failures = [exc]

    async def fail(request: Any, context: Context) -> Any:
        raise failures.pop()

    # Of the kind that gRPC runs before a message has come, whatever kind the method is of: else a
    # stranger could hold calls open by sending none.
    return grpc.stream_unary_rpc_method_handler(fail)


def _code_name(context: Context) -> str:
    """Return the name of the status that the call ends with."""
    code: Any = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _CODE_NAMES.get(code or 0, "UNKNOWN")


def _log_end(method: str, code: str, duration_s: float) -> None:
    if method.startswith(_UNLOGGED_PREFIXES):
        return
    if code in _OUR_FAULT:
        log.error("rpc", method=method, code=code, duration_s=round(duration_s, 6))
    elif code in ("OK", "CANCELLED"):
        log.debug("rpc", method=method, code=code, duration_s=round(duration_s, 6))
    else:
        log.info("rpc", method=method, code=code, duration_s=round(duration_s, 6))
