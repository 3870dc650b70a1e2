"""A bound on each write to a client, at next to no cost for those that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway.lazy_timer import LazyTimer
from pagewire.kit.errors import InternalError, PagewireError


class SendWatch:
    """`with` around each write of one stream; one write at a time.

    A write that is not done in time is cancelled, as by `asyncio.timeout`, which costs several
    times as much as a write of one token.
    """

    def __init__(
        self, limit_s: float, deadline_s: float, error: Callable[[], PagewireError]
    ) -> None:
        """Prepare.

        Args:
            limit_s: Seconds that a write may take.
            deadline_s: Time of the event loop at which every write ends.
            error: Makes what a write raises that took too long.
        """
        self._limit_s = limit_s
        self._deadline_s = deadline_s
        self._error = error
        self._loop = asyncio.get_running_loop()
        self._timer = LazyTimer(self._expire)
        self._task: asyncio.Task[object] | None = None
        self._num_cancels = 0
        self._is_late = False
        self._since_s = 0.0
        self.under_way: asyncio.Future[object] | None = None
        """What a write waits for whose task does something else; once done, it is in time."""

    @property
    def blocked_s(self) -> float:
        """How long the write under way has waited; 0: there is none."""
        return self._loop.time() - self._since_s if self._is_waiting else 0.0

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        self._num_cancels = task.cancelling() if task is not None else 0
        self._since_s = now_s = self._loop.time()
        self._timer.set(min(now_s + self._limit_s, self._deadline_s))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.unset()
        task, self._task, self.under_way = self._task, None, None
        if not self._is_late or task is None:
            return
        self._is_late = False
        # A cancel from elsewhere at the same time goes before ours.
        if task.uncancel() <= self._num_cancels and exc_type is asyncio.CancelledError:
            raise self._error() from None

    def close(self) -> None:
        """Let go of the timer, and of who makes the error; nobody writes any more. Idempotent."""
        self._timer.close()
        self._error = _closed

    @property
    def _is_waiting(self) -> bool:
        is_done = self.under_way is not None and self.under_way.done()
        return self._task is not None and not is_done

    def _expire(self) -> None:
        if self._task is not None and self._is_waiting:
            self._is_late = True
            self._task.cancel()


def _closed() -> PagewireError:
    return InternalError("a stream was written to after its end")
