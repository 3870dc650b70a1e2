"""Sends jobs when they are due, as many at a time as may be, and keeps what each saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from pagewire.cli.bench.record import BenchRequestError, Job, RequestRecord, Target


class Driver:
    """One run against one target; belongs to one event loop.

    A job that is due while all places are taken waits for one, and its record says how late it was
    sent: a load that the client itself cut is not the load that was asked for.
    """

    def __init__(
        self,
        target: Target,
        max_concurrency: int | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        on_end: Callable[[RequestRecord], object] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            target: The server.
            max_concurrency: Most requests at a time; None: all that are due.
            clock: Seconds; that of the targets. An event loop's may count milliseconds.
            sleep: Waits so many seconds.
            on_end: Called with each record that is complete.
        """
        self._target = target
        self._max_concurrency = max_concurrency
        self._clock = clock
        self._sleep = sleep
        self._on_end = on_end

    async def run(self, jobs: Sequence[Job]) -> tuple[list[RequestRecord], float]:
        """Run all jobs.

        Args:
            jobs: In the order in which they are due.

        Returns:
            Their records in the same order, and the seconds from the start to the last end.
        """
        start_s = self._clock()
        records = [RequestRecord(start_s + job.due_s) for job in jobs]
        places = asyncio.Semaphore(self._max_concurrency or max(1, len(jobs)))
        async with asyncio.TaskGroup() as running:
            for job, record in zip(jobs, records, strict=True):
                if (early_s := record.due_s - self._clock()) > 0:
                    await self._sleep(early_s)
                await places.acquire()
                running.create_task(self._run_one(job, record, places))
        return records, self._clock() - start_s

    async def _run_one(self, job: Job, record: RequestRecord, places: asyncio.Semaphore) -> None:
        record.started_s = self._clock()
        try:
            await self._target.run(job, record)
        except BenchRequestError as exc:
            record.error = str(exc)
        finally:
            places.release()
        self._on_end(record)
