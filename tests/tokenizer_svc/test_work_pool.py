from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from pagewire.kit.errors import QueueFullError
from tokenizer_svc.work_pool import WorkPool


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Blocks jobs that wait for it, until the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


async def test_work_runs_in_another_thread() -> None:
    pool = WorkPool(1)
    assert await pool.run(threading.get_ident) != threading.get_ident()
    pool.close()


async def test_the_loop_goes_on_meanwhile(gate: threading.Event) -> None:
    pool = WorkPool(1)
    job = asyncio.ensure_future(pool.run(gate.wait))
    await asyncio.sleep(0)
    assert not job.done()
    gate.set()
    assert await job is True
    pool.close()


async def test_errors_come_back() -> None:
    pool = WorkPool(1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert pool.num_jobs == 0
    pool.close()


async def test_more_jobs_than_allowed_are_refused(gate: threading.Event) -> None:
    pool = WorkPool(1, max_jobs=2)
    jobs = [asyncio.ensure_future(pool.run(gate.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError) as caught:
        await pool.run(gate.wait)
    assert caught.value.retry_after_s is not None
    gate.set()
    await asyncio.gather(*jobs)
    assert pool.num_jobs == 0
    assert await pool.run(int) == 0
    pool.close()


async def test_a_cancelled_job_that_waits_never_runs(gate: threading.Event) -> None:
    pool = WorkPool(1)
    ran = list[int]()
    blocker = asyncio.ensure_future(pool.run(gate.wait))
    waiting = asyncio.ensure_future(pool.run(ran.append, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await blocker
    assert pool.num_jobs == 0
    pool.close()
    assert ran == []


async def test_jobs_see_the_callers_context() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("request")
    pool = WorkPool(1)
    assert await pool.run(variable.get) == "request"
    pool.close()
