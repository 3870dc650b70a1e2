"""The messages of one stream over gRPC, each written while the next one is waited for.

A task that awaits each write is woken twice a message: once it is written, and once there is
another. Most writes are done long before that, so here the one before is awaited only when there is
another. Order, one write at a time and the bound on each (`SendWatch`) stay as they are.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from gateway.send_watch import SendWatch

M = TypeVar("M")

Write = Callable[[M], Coroutine[Any, Any, None]]


class StreamWriter(Generic[M]):
    """Used by one task, inside `async with`, which ends when all is written.

    It waits for a write after an error too, as whoever tells the client of the error writes; not
    where its task is cancelled.

    Invariant: `_write` is a write that has begun and waits for `_awaited`; None: there is none.
    """

    def __init__(self, write: Write[M], watch: SendWatch) -> None:
        """Prepare.

        Args:
            write: Writes one message; its coroutine waits for futures alone.
            watch: Bounds each write, from its begin to its end.
        """
        self._begin = write
        self._watch = watch
        self._write: Coroutine[Any, Any, None] | None = None
        self._awaited: asyncio.Future[Any] | None = None

    async def write(self, message: M) -> None:
        """Begin to write a message, as soon as the one before is written.

        Raises:
            PagewireError: That took too long.
        """
        if self._write is not None:
            await self.finish()
        write = self._begin(message)
        self._watch.__enter__()
        try:
            self._awaited = self._watch.under_way = write.send(None)
        except StopIteration:
            self._watch.__exit__(None, None, None)
        else:
            self._write = write

    async def finish(self) -> None:
        """Wait until what was begun is written.

        Raises:
            PagewireError: That took too long.
        """
        write, awaited = self._write, self._awaited
        if write is None or awaited is None:
            return
        self._write = self._awaited = None
        try:
            if not awaited.done():
                await _rest(write, awaited)
            else:
                await _rest(write, write.send(None))
        except StopIteration:
            pass
        finally:
            write.close()
        self._watch.__exit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not isinstance(exc, Exception):
            self._give_up(exc)
            return
        try:
            # A status that went past the first message would take its metadata along.
            await self.finish()
        except BaseException as failure:
            self._give_up(failure)
            raise
        if exc is not None:
            self._give_up(exc)

    def _give_up(self, exc: BaseException) -> None:
        """Leave the write under way to itself; a late one is said to be that, and not cancelled."""
        if self._write is not None:
            self._write.close()
            _forget(self._awaited)
            self._write = self._awaited = None
        self._watch.__exit__(type(exc), exc, exc.__traceback__)


def _forget(awaited: asyncio.Future[Any] | None) -> None:
    """Want no outcome of it: a write to a client that is gone fails, which is nobody's error."""
    if awaited is not None and not awaited.cancel() and not awaited.cancelled():
        awaited.exception()


@types.coroutine
def _rest(write: Coroutine[Any, Any, None], awaited: object) -> Generator[Any, None, None]:
    """Go on with a coroutine that waits for a future, in the task that awaits this."""
    while True:
        yield awaited
        try:
            awaited = write.send(None)
        except StopIteration:
            return
