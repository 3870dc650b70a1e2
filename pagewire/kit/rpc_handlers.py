"""Running code around a gRPC handler, whatever its kind.

grpc.aio has four kinds of handlers, and stream handlers may yield or call `context.write`.
`wrap_handler` gives them one shape, an async context manager around the whole call; the
interceptors of `pagewire.kit.interceptors` are written in it. `refuse_undecodable` gives bytes that
are no message the status of bad input.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, TypeAlias

import grpc

from pagewire.kit.errors import InvalidRequestError

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
    wrap = _stream if handler.response_streaming else _unary
    wrapped = wrap(behavior, around, takes_stream=handler.request_streaming)
    return make(wrapped, handler.request_deserializer, handler.response_serializer)


def refuse_undecodable(handler: Handler) -> Handler:
    """Return the handler, with `InvalidRequestError` for bytes that are no message of its type.

    By itself gRPC answers UNKNOWN, and no interceptor hears of it. A call with one request raises
    it before its handler starts; a stream raises it where its handler reads.
    """
    deserializer = handler.request_deserializer
    if deserializer is None:
        return handler
    behavior, make = _parts(handler)
    if handler.request_streaming:
        return make(behavior, _raising(deserializer), handler.response_serializer)
    _refuse_sync(behavior)
    return make(_checked(behavior), _marking(deserializer), handler.response_serializer)


class _Undecodable:
    """Stands for a request that could not be read."""


_UNDECODABLE: Final = _Undecodable()


def _raising(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def deserialize(message: bytes) -> Any:
        try:
            return deserializer(message)
        except Exception:  # protobuf's errors quote the bytes, and say nothing of use
            raise _undecodable() from None

    return deserialize


def _marking(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Read a single request: gRPC does so outside all handlers, where no exception is mapped."""

    def deserialize(message: bytes) -> Any:
        try:
            return deserializer(message)
        except Exception:
            return _UNDECODABLE

    return deserialize


def _checked(behavior: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(behavior):

        async def call(request: Any, context: Context) -> Any:
            if request is _UNDECODABLE:
                raise _undecodable()
            return await behavior(request, context)

        return call

    async def stream(request: Any, context: Context) -> None:
        if request is _UNDECODABLE:
            raise _undecodable()
        await _write_all(behavior(request, context), context)

    return stream


def _undecodable() -> InvalidRequestError:
    return InvalidRequestError(
        "the message is not of the type that the method takes; client and server may be generated"
        " from different versions of the .proto",
        reason="UNDECODABLE_MESSAGE",
    )


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


def _unary(
    behavior: Callable[..., Any], around: Around, *, takes_stream: bool
) -> Callable[..., Any]:
    async def call(request: Any, context: Context) -> Any:
        try:
            async with around(context):
                return await behavior(request, context)
        except grpc.aio.AbortError as abort:
            _forget_frames(abort)
            raise
        finally:
            if takes_stream:
                await _close_requests(request)
            del request, context

    return call


def _stream(
    behavior: Callable[..., Any], around: Around, *, takes_stream: bool
) -> Callable[..., Any]:
    """Give a stream handler the writing form: it is the cheaper one, and needs one wrapper."""
    if inspect.iscoroutinefunction(behavior):
        return _unary(behavior, around, takes_stream=takes_stream)

    async def write(request: Any, context: Context) -> None:
        await _write_all(behavior(request, context), context)

    return _unary(write, around, takes_stream=takes_stream)


async def _write_all(generator: AsyncGenerator[Any, None], context: Context) -> None:
    async with aclosing(generator) as messages:
        async for message in messages:
            await context.write(message)


async def _close_requests(requests: Any) -> None:
    """End the iterator over a call's requests, which may not have been read to their end.

    gRPC's iterator and its generator hold each other, and the call with them, until it has ended.
    """
    await aiter(requests).aclose()


def _forget_frames(abort: grpc.aio.AbortError) -> None:
    """Let an abort that leaves its handler lead to none of the call's frames.

    gRPC keeps the exception with the call's context, and every frame on its way has the context:
    left as it is, the circle would keep the call and its request until garbage is collected.
    """
    abort.__traceback__ = None
    abort.__context__ = None
