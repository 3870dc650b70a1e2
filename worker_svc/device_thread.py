"""The one thread on which all device work runs: loading, allocating, steps.

Owns the thread and its bounded queue, in order of submission, so that step N + 1 can be queued
while N runs. Knows nothing of what the work is. Its methods are called on one event loop, which
awaits the results; whatever the work raises is raised there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pagewire.kit.busy_meter import BusyMeter
from pagewire.kit.errors import ServiceUnavailableError

T = TypeVar("T")

DEFAULT_MAX_QUEUED = 256


@dataclass(frozen=True, slots=True)
class _Job:
    """Work that waits or runs."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    queued_ns: int


class DeviceThread:
    """Runs functions one after another. `start` before use; `close` drops what has not begun.

    Attributes:
        idle_ns: Read on this thread by the work that runs: how long nothing was queued before it.
        queue_ns: Likewise: how long it was queued itself.
        busy: How long it has worked.
    """

    def __init__(self, name: str = "device", max_queued: int = DEFAULT_MAX_QUEUED) -> None:
        self.idle_ns = 0
        self.queue_ns = 0
        self.busy = BusyMeter(num_threads=1)
        self._max_queued = max_queued
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._last_done_ns = time.monotonic_ns()
        # A daemon: work that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def num_queued(self) -> int:
        """Pieces of work that have not begun."""
        return len(self._jobs)

    def start(self) -> None:
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Queue work; the future has its result. Cancelling the future drops work not begun.

        Raises:
            ServiceUnavailableError: The queue is full, or the thread is closed.
        """
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), loop, time.monotonic_ns())
        with self._changed:
            if self._closed:
                raise ServiceUnavailableError("the worker is shutting down", reason="SHUTTING_DOWN")
            if len(self._jobs) >= self._max_queued:
                raise ServiceUnavailableError(
                    f"{self._max_queued} pieces of work wait for the device already",
                    reason="DEVICE_QUEUE_FULL",
                )
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    async def run(self, function: Callable[[], T]) -> T:
        """Queue work and await its result. Cancelling drops only work that has not begun."""
        return await self.submit(function)

    async def close(self, timeout_s: float) -> bool:
        """Let running work end, drop the rest; say whether the thread ended in time. Idempotent."""
        with self._changed:
            self._closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        for job in dropped:
            job.future.cancel()
        if self._thread.ident is None:
            return True
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            self.idle_ns = max(0, job.queued_ns - self._last_done_ns)
            self.queue_ns = time.monotonic_ns() - job.queued_ns
            result: Any = None
            failure: BaseException | None = None
            try:
                with self.busy.working():
                    result = job.function()
            except BaseException as error:  # it belongs to whoever awaits the future
                failure = error
            self._last_done_ns = time.monotonic_ns()
            _deliver(job, result, failure)
            del job, result, failure  # what the work holds must not live until the next one

    def _next_job(self) -> _Job | None:
        """The next job that nobody has cancelled; None once closed."""
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return None
                job = self._jobs.popleft()
                if not job.future.cancelled():
                    return job


def _deliver(job: _Job, result: Any, failure: BaseException | None) -> None:
    def set_outcome() -> None:
        if job.future.cancelled():
            return
        if failure is None:
            job.future.set_result(result)
        elif isinstance(failure, (StopIteration, KeyboardInterrupt, SystemExit)):
            # A future refuses the first, and the loop would end the process on the others.
            job.future.set_exception(RuntimeError(f"device work raised {type(failure).__name__}"))
        else:
            job.future.set_exception(failure)

    try:
        job.loop.call_soon_threadsafe(set_outcome)
    except RuntimeError:
        # The loop is closed: the process is ending and nobody awaits the result.
        return
