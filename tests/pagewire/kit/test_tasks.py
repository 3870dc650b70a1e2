"""Tasks have an owner: failures surface, and closing leaves none behind."""

import asyncio

import pytest

from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.tasks import TaskOwner, cancel_and_wait


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise LookupError("no")


async def test_the_first_failure_reaches_who_waits_for_it():
    async with TaskOwner() as owner:
        owner.spawn(forever(), name="steady")
        owner.spawn(fail(), name="broken")
        with pytest.raises(LookupError):
            await owner.wait_failed()


async def test_a_failure_before_the_wait_is_not_lost():
    async with TaskOwner() as owner:
        task = owner.spawn(fail(), name="broken")
        await asyncio.wait([task])
        with pytest.raises(LookupError):
            await owner.wait_failed()


async def test_closing_cancels_and_awaits_every_task():
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    async with TaskOwner() as owner:
        owner.spawn(work(), name="work")
        await asyncio.sleep(0)
    assert cleaned.is_set()
    assert len(owner) == 0


async def test_a_finished_task_is_let_go():
    async with TaskOwner() as owner:
        await owner.spawn(asyncio.sleep(0), name="short")
        await asyncio.sleep(0)
        assert len(owner) == 0


async def test_a_closed_owner_starts_nothing():
    owner = TaskOwner()
    await owner.close()
    with pytest.raises(RuntimeError, match="late"):
        owner.spawn(forever(), name="late")


async def test_a_task_cannot_close_its_own_owner():
    async with TaskOwner() as owner:
        task = owner.spawn(owner.close(), name="closes itself")
        await asyncio.wait([task])
        assert isinstance(task.exception(), RuntimeError)


async def test_a_task_that_fails_on_its_way_out_does_not_stop_the_closing():
    async def bad_cleanup() -> None:
        try:
            await forever()
        finally:
            raise LookupError("in cleanup")

    async with TaskOwner() as owner:
        owner.spawn(bad_cleanup(), name="bad")
        owner.spawn(forever(), name="good")
        await asyncio.sleep(0)
    assert len(owner) == 0


async def test_a_cancelled_closer_still_waits_for_its_tasks_and_stays_cancelled():
    release = asyncio.Event()
    ended = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await forever()
        finally:
            await release.wait()
            ended.set()

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    closer = asyncio.create_task(cancel_and_wait(task))
    await asyncio.sleep(0)
    closer.cancel()
    await asyncio.sleep(0)
    assert not closer.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await closer
    assert ended.is_set()


@pytest.mark.parametrize(
    ("failure", "level"),
    [(InvalidRequestError("bad", reason="X", field="y"), "INFO"), (LookupError("no"), "WARNING")],
)
async def test_a_failure_on_the_way_out_is_told_as_what_it_is(failure, level, caplog):
    async def fail_late() -> None:
        try:
            await forever()
        finally:
            raise failure

    caplog.set_level("INFO", "pagewire.kit.tasks")
    task = asyncio.create_task(fail_late())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    (record,) = caplog.records
    assert record.levelname == level
