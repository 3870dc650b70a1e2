"""CPU-bound work in threads, bounded, so that the event loop stays quick.

The Rust library lets other threads run while it works; a bounded number of jobs may wait, more are
refused at once. Knows nothing of tokenizers.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from pagewire.kit.busy_meter import BusyMeter
from pagewire.kit.errors import QueueFullError
from pagewire.kit.rust_panics import RustPanicsRaised

T = TypeVar("T")

MAX_JOBS = 256
_RETRY_AFTER_S = 1.0


class WorkPool:
    """Threads of one event loop. `_num_jobs` counts jobs that run or wait; `busy`, their work."""

    def __init__(self, num_threads: int, max_jobs: int = MAX_JOBS) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self._max_jobs = max_jobs
        self._num_jobs = 0
        self.busy = BusyMeter(num_threads)

    @property
    def num_jobs(self) -> int:
        return self._num_jobs

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work(*arguments)` in a thread.

        A cancelled caller's job is dropped if it still waits, and runs to its end otherwise.

        Raises:
            QueueFullError: Too many jobs run and wait already.
        """
        if self._num_jobs >= self._max_jobs:
            raise QueueFullError("the tokenizer has too much to do", retry_after_s=_RETRY_AFTER_S)
        loop = asyncio.get_running_loop()
        self._num_jobs += 1
        run = contextvars.copy_context().run
        job = self._executor.submit(self._work, run, work, *arguments)
        job.add_done_callback(lambda done: self._on_done(loop, done))
        return await asyncio.wrap_future(job)

    def close(self) -> None:
        """Drop what waits; returns when what runs has ended."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _work(self, run: Callable[..., T], *arguments: Any) -> T:
        with self.busy.working(), RustPanicsRaised():
            return run(*arguments)

    def _on_done(self, loop: asyncio.AbstractEventLoop, _job: Future[Any]) -> None:
        # Called from the job's thread, or from the loop itself for a job that was dropped.
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._num_jobs -= 1
