"""A gRPC service of bytes with all four kinds of handlers, for tests of the kit.

`start_echo` runs it behind a real `ServiceServer`; what a handler does is given by the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.server import ServerConfig, ServiceServer
from tests.grpc_sending import with_its_status

SERVICE = "pagewire.test.Echo"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def registrar(
    deserializer: Callable[[bytes], Any] | None = None, **behaviors: Callable[..., Any]
) -> Callable[[grpc.aio.Server], None]:
    """Register handlers as generated code does; keys are kinds, which are also method names."""
    handlers = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(behavior, deserializer)
        for kind, behavior in behaviors.items()
    }

    def register(server: grpc.aio.Server) -> None:
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))
        server.add_registered_method_handlers(SERVICE, handlers)

    return register


@dataclass
class Echo:
    server: ServiceServer
    channel: grpc.aio.Channel

    def call(self, kind: str, request: bytes = b"x", **kwargs: Any) -> Any:
        """Start a call of one kind with a single request message."""
        multicallable = getattr(self.channel, kind)(f"/{SERVICE}/{kind}")
        argument = iter([request]) if kind.startswith("stream") else request
        return multicallable(argument, **kwargs)

    async def answer(self, kind: str, request: bytes = b"x", **kwargs: Any) -> list[bytes]:
        """Make a call and return all its response messages."""

        async def ask() -> list[bytes]:
            call = self.call(kind, request, **kwargs)
            if kind.endswith("stream"):
                return [message async for message in call]
            return [await call]

        return await with_its_status(ask)


@asynccontextmanager
async def start_echo(
    listen: str = "127.0.0.1:0",
    interceptors: Any = (),
    deserializer: Callable[[bytes], Any] | None = None,
    **behaviors: Callable[..., Any],
) -> AsyncIterator[Echo]:
    server = ServiceServer(
        ServerConfig(listen=listen, max_message_bytes=64 * 1024),
        SERVICE,
        [registrar(deserializer, **behaviors)],
        interceptors=interceptors,
    )
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            yield Echo(server, channel)
    finally:
        await server.stop(0)


def handler_of(kind: str, act: Callable[[grpc.aio.ServicerContext], Any]) -> Callable[..., Any]:
    """Return a handler of the kind that awaits `act(context)` and answers what it returns."""
    if kind.endswith("stream"):

        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            yield await act(context)

        return stream

    async def unary(request: Any, context: Any) -> bytes:
        return await act(context)

    return unary
