"""Merging and bounds of what waits for a client."""

from __future__ import annotations

import asyncio

import pytest

from gateway.generation import Finished, FinishReason, Output
from gateway.output_collector import OutputCollector
from pagewire.kit.errors import InternalError, QueueFullError


async def test_outputs_of_one_index_merge_while_nobody_takes_them() -> None:
    collector = OutputCollector(max_bytes=1000)
    finished = Finished(FinishReason.LENGTH)
    collector.put(Output(0, "a", [1]))
    collector.put(Output(1, "x", [9]))
    collector.put(Output(0, "b", [2], finished))
    assert await collector.take() == [Output(0, "ab", [1, 2], finished), Output(1, "x", [9])]


async def test_take_waits_for_the_next_output() -> None:
    collector = OutputCollector(max_bytes=1000)
    taking = asyncio.create_task(collector.take())
    await asyncio.sleep(0)
    assert not taking.done()
    collector.put(Output(0, "a", [1]))
    assert await taking == [Output(0, "a", [1])]


async def test_a_failure_comes_after_what_waits_already() -> None:
    collector = OutputCollector(max_bytes=1000)
    collector.put(Output(0, "a", [1]))
    collector.fail(InternalError("first"))
    collector.fail(InternalError("second"))
    assert await collector.take() == [Output(0, "a", [1])]
    with pytest.raises(InternalError, match="first"):
        await collector.take()


async def test_a_client_that_falls_too_far_behind_loses_its_request() -> None:
    collector = OutputCollector(max_bytes=100)
    for _ in range(20):
        collector.put(Output(0, "12345678", [1]))
    output = (await collector.take())[0]
    assert len(output.token_ids) < 20
    with pytest.raises(QueueFullError) as caught:
        await collector.take()
    assert caught.value.reason == "SLOW_CLIENT"


async def test_what_was_taken_frees_its_room() -> None:
    collector = OutputCollector(max_bytes=100)
    for _ in range(20):
        collector.put(Output(0, "12345678", [1]))
        await collector.take()
    collector.put(Output(0, "z", [2]))
    assert await collector.take() == [Output(0, "z", [2])]


async def test_a_wait_ends_with_nothing_when_its_time_is_over() -> None:
    collector, loop = OutputCollector(max_bytes=1000), asyncio.get_running_loop()
    assert await collector.take(loop.time() + 0.01) == []
    assert await collector.take(loop.time() - 1) == []
    collector.put(Output(0, "a", [1]))
    assert await collector.take(loop.time() - 1) == [Output(0, "a", [1])]
    collector.close()


async def test_waits_with_and_without_a_limit_take_turns() -> None:
    collector, loop = OutputCollector(max_bytes=1000), asyncio.get_running_loop()
    for until_s in (loop.time() + 3600, None, loop.time() + 3600):
        taking = asyncio.create_task(collector.take(until_s))
        await asyncio.sleep(0)
        assert not taking.done()
        collector.put(Output(0, "a", [1]))
        assert await taking == [Output(0, "a", [1])]
    collector.close()


async def test_a_cancelled_wait_loses_nothing() -> None:
    collector = OutputCollector(max_bytes=1000)
    taking = asyncio.create_task(collector.take())
    await asyncio.sleep(0)
    taking.cancel()
    collector.put(Output(0, "a", [1]))
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert await collector.take() == [Output(0, "a", [1])]
