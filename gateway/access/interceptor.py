"""The public gRPC API's side of access: a key for every call but health, and the client's limits.

An interceptor, so that a new method is behind it without a line of its own. Reflection needs a key
as well: it tells what there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc

from gateway.access.clients import Client, Clients
from pagewire.kit.rpc_handlers import Handler, wrap_handler

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"

_OPEN_PREFIX = "/grpc.health.v1.Health/"
_LIMITED_PREFIX = "/pagewire.v1.InferenceService/"
# What only tells what there is costs nothing worth a limit; over HTTP these are the GETs.
_UNLIMITED_METHODS = frozenset({_LIMITED_PREFIX + "ListModels"})


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Runs inside the kit's interceptors, which turn what it raises into a status."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        # gRPC answers by itself for a method that does not exist, and nothing is kept of its name.
        if handler is None or method.startswith(_OPEN_PREFIX):
            return handler
        metadata: Any = handler_call_details.invocation_metadata or ()
        client = self._identify(metadata)
        if not method.startswith(_LIMITED_PREFIX) or method in _UNLIMITED_METHODS:
            return handler
        return wrap_handler(handler, lambda _: _running(client))

    def _identify(self, metadata: Any) -> Client:
        found = {key: value for key, value in metadata if isinstance(value, str)}
        return self._clients.identify(found.get("authorization"), found.get("x-api-key"))


@asynccontextmanager
async def _running(client: Client) -> AsyncIterator[None]:
    with client.running():
        yield
