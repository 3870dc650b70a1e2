"""Bounds of writes to clients, and how they live with other cancellations."""

from __future__ import annotations

import asyncio

import pytest

from gateway.send_watch import SendWatch
from pagewire.kit.errors import QueueFullError


def make_watch(limit_s: float, deadline_s: float | None = None) -> SendWatch:
    if deadline_s is None:
        deadline_s = asyncio.get_running_loop().time() + 3600
    return SendWatch(limit_s, deadline_s, lambda: QueueFullError("late", reason="SLOW_CLIENT"))


async def test_a_write_that_waits_too_long_ends_and_the_next_one_has_its_own_time() -> None:
    watch = make_watch(0.01)
    for _ in range(2):
        with pytest.raises(QueueFullError, match="late"), watch:
            await asyncio.Event().wait()
        with watch:
            await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    watch.close()


async def test_no_write_lasts_beyond_the_deadline() -> None:
    watch = make_watch(3600, asyncio.get_running_loop().time() + 0.01)
    with pytest.raises(QueueFullError), watch:
        await asyncio.Event().wait()


async def test_time_between_writes_does_not_count() -> None:
    watch = make_watch(0.01)
    with watch:
        await asyncio.sleep(0)
    await asyncio.sleep(0.03)  # longer than a write may take
    with watch:
        await asyncio.sleep(0)
    watch.close()


async def test_a_write_that_fails_fails_as_it_does() -> None:
    watch = make_watch(3600)
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError
    watch.close()


async def test_a_cancel_from_elsewhere_stays_one() -> None:
    watch, begun = make_watch(3600), asyncio.Event()

    async def write() -> None:
        with watch:
            begun.set()
            await asyncio.Event().wait()

    writing = asyncio.create_task(write())
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    watch.close()


async def test_a_cancel_from_elsewhere_goes_before_a_late_write() -> None:
    watch, begun = make_watch(0.01), asyncio.Event()

    async def write() -> None:
        with watch:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # as a client that goes while its write is ended
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(write())
    watch.close()
