"""A grpc.aio server that says when it has stopped accepting, and leaves the running calls alone.

The accept loop of grpc.aio (1.81 to 1.85 at least) ends by an exception when a call's path is no
UTF-8, which anybody may send, and its own handler of that cancels every call. This replaces the
handler, and keeps alive what the core still writes to; `pagewire.kit.listener` puts another server
in the place of the ended one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]


class _AioServer(cygrpc.AioServer):  # type: ignore[misc]
    on_ended: Callable[[], None] | None = None

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        """Called for each call that the core may accept.

        An ended loop cancels these. The state of a call would be freed with its task, and the core
        writes to it when the server is stopped, or when a call comes before that.
        """
        task: asyncio.Task[Any] = super()._make_request_call_future(method)
        task.add_done_callback(_hear_out)
        return asyncio.shield(task)

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        """Called by the accept loop's task when it is done, as it is at every stop."""
        if task.cancelled() or task.exception() is None:
            return
        if self.on_ended is not None:
            self.on_ended()


def _hear_out(task: asyncio.Task[Any]) -> None:
    """Take the task's exception, which else is logged when nobody has waited for it."""
    if not task.cancelled():
        task.exception()


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor],
    options: Sequence[tuple[str, int]],
    on_ended: Callable[[], None],
) -> grpc.aio.Server:
    """Return a server like `grpc.aio.server`.

    Args:
        interceptors: Outermost first.
        options: Channel arguments.
        on_ended: Called on the event loop if it stops accepting though nobody stopped it.
    """
    original = cygrpc.AioServer
    # grpc.aio has no place for another class, and looks this one up when it builds a server.
    cygrpc.AioServer = _AioServer
    try:
        server = grpc.aio.server(interceptors=list(interceptors), options=list(options))
    finally:
        cygrpc.AioServer = original
    core: Any = server._server  # type: ignore[attr-defined]
    core.on_ended = on_ended
    return server
