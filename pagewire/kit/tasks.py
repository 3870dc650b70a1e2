"""Ownership of asyncio tasks: nobody's task is nobody's bug.

`TaskOwner` starts tasks, surfaces the first failure to whoever awaits `wait_failed`, and cancels
and awaits all of them when it closes. It does not restart anything: that is the owner's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from pagewire.kit.errors import PagewireError
from pagewire.kit.logs import get_logger

T = TypeVar("T")

log = get_logger("pagewire.kit.tasks")


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and return when all have ended.

    Failures on the way out are logged, not raised. When the caller is itself cancelled meanwhile,
    it still waits for them and then passes its own cancellation on.
    """
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as exc:
            cancelled = exc
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log_late_failure(task.get_name(), failure)
    try:
        if cancelled is not None:
            raise cancelled
    finally:
        # Its traceback leads back to this frame, and the tasks with it.
        del cancelled


def _log_late_failure(name: str, failure: BaseException) -> None:
    if isinstance(failure, PagewireError):
        # It was about to end its call for this reason, which another one came before.
        log.info("task_ended_on_cancel", task=name, reason=failure.reason)
    else:
        log.warning("task_failed_on_cancel", task=name, exc_info=failure)


class TaskOwner:
    """Owns the tasks that it spawned; use it as an async context manager or call `close`.

    Belongs to one event loop. Every spawned task has ended when `close` returns.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task. If it fails, `wait_failed` raises what it raised."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"cannot start task {name}: its owner is closed")
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def wait_failed(self) -> None:
        """Wait until a task fails, then raise its exception; never returns otherwise."""
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Cancel and await every task; idempotent. None of the tasks may call it."""
        if asyncio.current_task() in self._tasks:
            raise RuntimeError("a task cannot close its own owner: it would wait for itself")
        self._closed = True
        # A task may be spawned by none after this point, so one pass is enough.
        await cancel_and_wait(*self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if self._closed:
            return  # cancel_and_wait reports it
        log.error("task_failed", task=task.get_name(), exc_info=failure)
        if self._failure is None:
            self._failure = failure
            self._failed.set()
