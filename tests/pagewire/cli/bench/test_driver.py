"""When requests are sent, by a clock that moves only when somebody waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest

from pagewire.cli.bench.driver import Driver
from pagewire.cli.bench.record import BenchRequestError, Job, RequestRecord


class FakeTime:
    """A clock, and sleeping by it: whoever sleeps least is woken first."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_s + seconds, next(self._order), future))
        await future

    async def run(self, work: asyncio.Task[object]) -> None:
        """Let time pass until the work is done."""
        while not work.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers and not work.done():
                self._sleepers.sort()
                self.now_s, _, future = self._sleepers.pop(0)
                future.set_result(None)


class SlowTarget:
    """Answers every request after a while."""

    def __init__(self, time: FakeTime, answer_s: float, fails_on: str = "") -> None:
        self._time = time
        self._answer_s = answer_s
        self._fails_on = fails_on
        self.num_running = 0
        self.max_running = 0

    async def run(self, job: Job, record: RequestRecord) -> None:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        await self._time.sleep(self._answer_s)
        self.num_running -= 1
        if job.prompt == self._fails_on:
            raise BenchRequestError("it said no")
        record.arrivals_s.append(self._time.clock())

    async def close(self) -> None:
        pass


async def drive(
    target: SlowTarget, time: FakeTime, jobs: Sequence[Job], max_concurrency: int | None
) -> tuple[list[RequestRecord], float]:
    driver = Driver(target, max_concurrency, clock=time.clock, sleep=time.sleep)
    work = asyncio.create_task(driver.run(jobs))
    await time.run(work)
    return await work


async def test_requests_are_sent_when_they_are_due_whatever_the_others_do() -> None:
    time = FakeTime()
    target = SlowTarget(time, 10.0)
    jobs = [Job("a", 1, due_s) for due_s in (0.0, 0.5, 2.0)]
    records, duration_s = await drive(target, time, jobs, None)
    assert [r.started_s - 100 for r in records] == [0.0, 0.5, 2.0]
    assert [r.arrivals_s[0] - 100 for r in records] == [10.0, 10.5, 12.0]
    assert duration_s == 12.0
    assert target.max_running == 3


async def test_beyond_the_bound_they_wait_and_are_known_to_be_late() -> None:
    time = FakeTime()
    target = SlowTarget(time, 10.0)
    records, duration_s = await drive(target, time, [Job("a", 1)] * 5, 2)
    assert [r.started_s - r.due_s for r in records] == [0.0, 0.0, 10.0, 10.0, 20.0]
    assert (duration_s, target.max_running) == (30.0, 2)


async def test_one_that_fails_harms_no_other() -> None:
    time = FakeTime()
    jobs = [Job("a", 1), Job("bad", 1), Job("c", 1)]
    records, _ = await drive(SlowTarget(time, 1.0, fails_on="bad"), time, jobs, 1)
    assert [r.error for r in records] == ["", "it said no", ""]
    assert [len(r.arrivals_s) for r in records] == [1, 0, 1]


async def test_every_record_is_told_of_once() -> None:
    time, ended = FakeTime(), list[RequestRecord]()
    target = SlowTarget(time, 1.0)
    driver = Driver(target, 2, clock=time.clock, sleep=time.sleep, on_end=ended.append)
    work = asyncio.create_task(driver.run([Job("a", 1)] * 4))
    await time.run(work)
    records, _ = await work
    assert sorted(map(id, ended)) == sorted(map(id, records))


async def test_a_bug_of_a_target_ends_the_run() -> None:
    class Broken(SlowTarget):
        async def run(self, job: Job, record: RequestRecord) -> None:
            raise ZeroDivisionError

    time = FakeTime()
    driver = Driver(Broken(time, 1.0), 1, clock=time.clock, sleep=time.sleep)
    with pytest.raises(ExceptionGroup):
        await driver.run([Job("a", 1)])
