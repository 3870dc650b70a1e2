"""A grpc.aio server that a call of any path leaves as it was.

The accept loop of grpc.aio (1.85) ends by an exception when a call's path is no UTF-8, which
anybody may send, and every call on the server ends with it. It reads only paths of calls to methods
that nobody registered. Here that loop never sees these: they are answered beside it, unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

# In place of a path, in gRPC's own logs.
_UNREAD = "unregistered method"


class _AioServer(cygrpc.AioServer):  # type: ignore[misc]
    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Called for each call that the core may accept; None: to a method nobody registered.

        What is returned for those ends as gRPC's own does when the server stops, and never before.
        """
        if method is None:
            return asyncio.create_task(self._refuse_unregistered(), name="unregistered calls")
        future: asyncio.Future[Any] = super()._make_request_call_future(method)
        return future

    async def _refuse_unregistered(self) -> None:
        loop = asyncio.get_running_loop()
        nothing = cygrpc._MethodResolver([], {})
        refusing: set[asyncio.Task[None]] = set()
        while True:
            state = await self._request_call()
            # The same steps as in the accept loop, which finds no method of any name here.
            handling = cygrpc._handle_rpc(_UNREAD, nothing, (), state, loop, False)
            call = cygrpc._schedule_rpc_coro(handling, state, loop, _UNREAD)
            task = asyncio.create_task(call, name="unregistered call")
            refusing.add(task)
            task.add_done_callback(refusing.discard)


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int]]
) -> grpc.aio.Server:
    """Return a server like `grpc.aio.server`, which serves registered methods alone.

    Calls of others are UNIMPLEMENTED, without an interceptor being asked.

    Args:
        interceptors: Outermost first.
        options: Channel arguments.
    """
    original = cygrpc.AioServer
    # grpc.aio has no place for another class, and looks this one up when it builds a server.
    cygrpc.AioServer = _AioServer
    try:
        return grpc.aio.server(interceptors=list(interceptors), options=list(options))
    finally:
        cygrpc.AioServer = original
