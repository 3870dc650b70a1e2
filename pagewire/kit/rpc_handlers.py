"""Running code around a gRPC handler, whatever its kind.

grpc.aio has four kinds of handlers, and stream handlers may yield or call `context.write`.
`wrap_handler` gives them one shape, an async context manager around the whole call; the
interceptors of `pagewire.kit.interceptors` are written in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeAlias

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Around: TypeAlias = "Callable[[Context], AbstractAsyncContextManager[None]]"


def wrap_handler(handler: Handler, around: Around) -> Handler:
    """Return the handler with `around(context)` entered for the time of each call.

    What the handler raises is raised inside the context manager.

    Raises:
        TypeError: A handler is a plain function, which grpc.aio would run in a thread.
    """
    behavior, make = _parts(handler)
    _refuse_sync(behavior)
    wrapped = _stream(behavior, around) if handler.response_streaming else _unary(behavior, around)
    return make(wrapped, handler.request_deserializer, handler.response_serializer)


def _parts(handler: Handler) -> tuple[Callable[..., Any], Callable[..., Handler]]:
    if handler.request_streaming and handler.response_streaming:
        return _given(handler.stream_stream), grpc.stream_stream_rpc_method_handler
    if handler.request_streaming:
        return _given(handler.stream_unary), grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return _given(handler.unary_stream), grpc.unary_stream_rpc_method_handler
    return _given(handler.unary_unary), grpc.unary_unary_rpc_method_handler


def _given(behavior: Callable[..., Any] | None) -> Callable[..., Any]:
    if behavior is None:
        raise TypeError("the handler has no behavior of the kind that it declares")
    return behavior


def _refuse_sync(behavior: Callable[..., Any]) -> None:
    if not (inspect.iscoroutinefunction(behavior) or inspect.isasyncgenfunction(behavior)):
        raise TypeError(f"{behavior!r} must be an async function")


def _unary(behavior: Callable[..., Any], around: Around) -> Callable[..., Any]:
    async def call(request: Any, context: Context) -> Any:
        async with around(context):
            return await behavior(request, context)

    return call


def _stream(behavior: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """Give a stream handler the writing form: it is the cheaper one, and needs one wrapper."""
    if inspect.iscoroutinefunction(behavior):
        return _unary(behavior, around)

    async def call(request: Any, context: Context) -> None:
        async with around(context), aclosing(behavior(request, context)) as messages:
            async for message in messages:
                await context.write(message)

    return call
