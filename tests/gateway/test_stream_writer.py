"""Writes that go on while their task waits for something else."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.send_watch import SendWatch
from gateway.stream_writer import StreamWriter
from pagewire.kit.errors import QueueFullError


class Peer:
    """What is written to; a write is over when `let_through` says so."""

    def __init__(self, *, is_fast: bool = False) -> None:
        self.begun: list[str] = []
        self.written: list[str] = []
        self._is_fast = is_fast
        self._waiting: list[asyncio.Future[None]] = []

    async def write(self, message: str) -> None:
        self.begun.append(message)
        if not self._is_fast:
            for _ in range(2):  # gRPC's waits once; another coroutine may wait again
                self._waiting.append(asyncio.get_running_loop().create_future())
                await self._waiting[-1]
        self.written.append(message)

    def let_through(self) -> None:
        """End the first wait of the write under way, or the second."""
        if not (waiting := self._waiting.pop()).cancelled():
            waiting.set_result(None)

    def fail(self, exc: Exception) -> None:
        """End the wait of the write under way with an error; as gRPC, not one that is given up."""
        if not (waiting := self._waiting.pop()).cancelled():
            waiting.set_exception(exc)


def make_writer(peer: Peer, limit_s: float = 3600) -> StreamWriter[str]:
    deadline_s = asyncio.get_running_loop().time() + 3600
    error = QueueFullError("late", reason="SLOW_CLIENT")
    return StreamWriter(peer.write, SendWatch(limit_s, deadline_s, lambda: error))


async def test_a_write_does_not_wait_and_the_next_one_waits_for_it() -> None:
    peer = Peer()
    async with make_writer(peer) as writer:
        await writer.write("a")
        assert (peer.begun, peer.written) == (["a"], [])
        second = asyncio.create_task(writer.write("b"))
        for _ in range(2):
            await asyncio.sleep(0)
            assert peer.begun == ["a"]
            peer.let_through()
        await second
        assert (peer.begun, peer.written) == (["a", "b"], ["a"])
        finishing = asyncio.create_task(writer.finish())
        for _ in range(2):
            await asyncio.sleep(0)
            assert not finishing.done()
            peer.let_through()
        await finishing
    assert peer.written == ["a", "b"]


async def test_a_write_that_waits_for_nothing_is_over_at_once() -> None:
    peer = Peer(is_fast=True)
    async with make_writer(peer) as writer:
        for message in "abc":
            await writer.write(message)
            assert peer.written[-1] == message
        await writer.finish()
    assert peer.written == ["a", "b", "c"]


async def test_a_write_that_takes_too_long_ends_what_its_task_does_meanwhile() -> None:
    peer = Peer()
    with pytest.raises(QueueFullError, match="late"):
        async with make_writer(peer, limit_s=0.01) as writer:
            await writer.write("a")
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_write_that_takes_too_long_ends_the_next_one() -> None:
    peer = Peer()
    with pytest.raises(QueueFullError, match="late"):
        async with make_writer(peer, limit_s=0.01) as writer:
            await writer.write("a")
            await writer.write("b")
    assert peer.begun == ["a"]


async def test_a_write_that_is_over_is_not_late_however_long_its_task_does_not_look() -> None:
    peer, watched = Peer(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with make_writer(peer, limit_s=0.01) as writer:
        await writer.write("a")
        peer.let_through()
        loop.call_later(0.05, watched.set)  # the watch rings before
        await watched.wait()
        finishing = asyncio.create_task(writer.finish())
        await asyncio.sleep(0)
        peer.let_through()
        await finishing
    assert peer.written == ["a"]


async def test_a_write_that_fails_does_so_where_it_is_awaited() -> None:
    peer = Peer()
    with pytest.raises(ZeroDivisionError):
        async with make_writer(peer) as writer:
            await writer.write("a")
            peer.fail(ZeroDivisionError())
            await writer.write("b")
    assert peer.begun == ["a"]


async def test_an_error_waits_for_the_write_before_it() -> None:
    peer = Peer()

    async def work() -> None:
        async with make_writer(peer) as writer:
            await writer.write("a")
            raise ZeroDivisionError

    working = asyncio.create_task(work())
    for _ in range(2):
        await asyncio.sleep(0)
        assert not working.done()
        peer.let_through()
    with pytest.raises(ZeroDivisionError):
        await working
    assert peer.written == ["a"]


async def test_an_error_waits_no_longer_than_a_write_may_take() -> None:
    peer = Peer()
    with pytest.raises(QueueFullError, match="late"):
        async with make_writer(peer, limit_s=0.01) as writer:
            await writer.write("a")
            raise ZeroDivisionError


async def test_what_is_under_way_when_its_task_is_cancelled_is_given_up() -> None:
    peer = Peer()

    async def work() -> None:
        async with make_writer(peer) as writer:
            await writer.write("a")
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    peer.let_through()
    assert peer.written == []


@pytest.mark.parametrize("fails_first", [True, False])
async def test_a_write_that_fails_once_its_task_is_cancelled_is_no_lost_error(
    fails_first: bool,
) -> None:
    """gRPC fails what is under way as the client leaves, before or after it cancels the task."""
    peer, told = Peer(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about))

    async def work() -> None:
        async with make_writer(peer) as writer:
            await writer.write("a")
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    if fails_first:
        peer.fail(ZeroDivisionError())
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    if not fails_first:
        peer.fail(ZeroDivisionError())
    del working
    gc.collect()
    assert told == []
