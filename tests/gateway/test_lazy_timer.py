"""When a timer that is set again and again rings."""

from __future__ import annotations

import asyncio

from gateway.lazy_timer import LazyTimer


async def test_it_rings_once_at_the_time_that_was_set_last_and_not_before() -> None:
    loop, rung_s = asyncio.get_running_loop(), list[float]()
    rung = asyncio.Event()

    def ring() -> None:
        rung_s.append(loop.time())
        rung.set()

    timer = LazyTimer(ring)
    due_s = loop.time() + 0.05
    timer.set(loop.time() + 0.01)
    timer.set(due_s)
    await rung.wait()
    assert [at_s >= due_s for at_s in rung_s] == [True]


async def test_an_earlier_time_goes_before_a_later_one() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    timer = LazyTimer(rung.set)
    timer.set(loop.time() + 3600)
    timer.set(loop.time())
    async with asyncio.timeout(20):
        await rung.wait()
    timer.close()


async def test_unset_and_closed_it_does_not_ring() -> None:
    loop, num_rings = asyncio.get_running_loop(), 0

    def ring() -> None:
        nonlocal num_rings
        num_rings += 1

    unset, closed, last = LazyTimer(ring), LazyTimer(ring), asyncio.Event()
    unset.set(loop.time() + 0.01)
    unset.unset()
    closed.set(loop.time() + 0.01)
    closed.close()
    closed.close()
    LazyTimer(last.set).set(loop.time() + 0.02)
    await last.wait()
    assert num_rings == 0


async def test_it_can_be_set_again_after_it_rang() -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    timer = LazyTimer(rung.set)
    for _ in range(3):
        rung.clear()
        timer.set(loop.time())
        await rung.wait()
