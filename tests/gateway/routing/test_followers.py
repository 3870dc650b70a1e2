"""Followers over real gRPC: what a scheduler tells, also after it stops, errs or starts again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.routing import followers
from gateway.routing.followers import follow_kv_events, follow_load
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.replica_load import ReplicaLoad
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))


class Teller(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Tells what is put into `says`; None ends a call, an exception fails it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.says: asyncio.Queue[Any] = asyncio.Queue()

    async def WatchLoad(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self._tell(request, context):
            yield message

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for message in self._tell(request, context):
            yield message

    async def was_asked(self) -> Any:
        async with asyncio.timeout(20):
            return await self.asked.get()

    async def _tell(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await context.send_initial_metadata(())
        self.asked.put_nowait(request)
        while (message := await self.says.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message


@asynccontextmanager
async def telling() -> AsyncIterator[tuple[Teller, Any]]:
    teller = Teller()
    server = ServiceServer(
        ServerConfig(listen="127.0.0.1:0"),
        "pagewire.v1.SchedulerService",
        [lambda s: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(teller, s)],
    )
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            yield teller, scheduler_pb2_grpc.SchedulerServiceStub(channel)
    finally:
        await server.stop(0)


class Changes:
    """Tells whoever waits when one of the named methods of an object was called."""

    def __init__(self, told: Any, *names: str) -> None:
        self._event = asyncio.Event()
        for name in names:
            setattr(told, name, self._noting(getattr(told, name)))

    def _noting(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                self._event.set()

        return call

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._event.clear()
                await self._event.wait()


def watched_index() -> tuple[PrefixIndex, Changes]:
    index = PrefixIndex(4)
    return index, Changes(index, "void", "pause", "resume", "take_snapshot", "apply")


@asynccontextmanager
async def following(index: PrefixIndex, stub: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(follow_kv_events(stub, index))
    try:
        yield
    finally:
        await cancel_and_wait(task)


def snapshot(hashes: list[bytes], through: int = 0, is_last: bool = True) -> Any:
    part = scheduler_pb2.KvSnapshot(through_sequence=through, hashes=hashes, is_last=is_last)
    return scheduler_pb2.SubscribeKvEventsResponse(snapshot=part)


def batch(sequence: int, stored: list[bytes], **fields: Any) -> Any:
    message = scheduler_pb2.SubscribeKvEventsResponse(sequence=sequence, **fields)
    message.stored.add(hashes=stored)
    return message


async def test_a_pause_is_told_as_not_ready() -> None:
    load = ReplicaLoad()
    changes = Changes(load, "take", "lost")
    async with telling() as (teller, stub):
        task = asyncio.create_task(follow_load(stub, load, lambda: 0))
        for paused in (False, True, False):
            message = scheduler_pb2.WatchLoadResponse(ready=True)
            message.figures.paused = paused
            teller.says.put_nowait(message)
            await changes.until(lambda paused=paused: load.is_known and load.is_ready is not paused)
        await cancel_and_wait(task)


async def test_the_index_begins_with_a_snapshot_and_follows() -> None:
    index, changes = watched_index()
    async with telling() as (teller, stub), following(index, stub):
        asked = await teller.was_asked()
        assert (asked.snapshot, asked.hashes_only, asked.start_sequence) == (True, True, 0)
        teller.says.put_nowait(snapshot([A], 6, is_last=False))
        teller.says.put_nowait(snapshot([B], 6))
        teller.says.put_nowait(scheduler_pb2.SubscribeKvEventsResponse(heartbeat={"sequence": 1}))
        teller.says.put_nowait(batch(7, [C], removed_hashes=[A]))
        await changes.until(lambda: C in index)
        assert (A in index, B in index, index.is_current) == (False, True, True)
    assert not index.is_current


async def test_it_goes_on_where_it_was_when_the_call_ends() -> None:
    index, changes = watched_index()
    async with telling() as (teller, stub), following(index, stub):
        await teller.was_asked()
        teller.says.put_nowait(snapshot([A], 3))
        await changes.until(lambda: index.is_current)
        teller.says.put_nowait(None)
        asked = await teller.was_asked()
        assert (asked.snapshot, asked.start_sequence) == (False, 4)
        await changes.until(lambda: index.is_current)
        assert A in index


@pytest.mark.parametrize(
    "trouble", [FailedPreconditionError("gone", reason="KV_EVENTS_LOST"), batch(9, [B])]
)
async def test_what_was_missed_voids_all_and_a_snapshot_comes(trouble: Any) -> None:
    index, changes = watched_index()
    async with telling() as (teller, stub), following(index, stub):
        await teller.was_asked()
        teller.says.put_nowait(snapshot([A], 3))
        await changes.until(lambda: index.is_current)
        teller.says.put_nowait(trouble)
        assert (await teller.was_asked()).snapshot
        assert (len(index), index.is_current) == (0, False)


async def test_half_a_snapshot_is_worth_nothing() -> None:
    index, _ = watched_index()
    async with telling() as (teller, stub), following(index, stub):
        await teller.was_asked()
        teller.says.put_nowait(snapshot([A], 3, is_last=False))
        teller.says.put_nowait(None)
        await teller.was_asked()
        assert len(index) == 0


async def test_a_scheduler_without_events_is_not_asked_again() -> None:
    index, _ = watched_index()
    async with telling() as (teller, stub), following(index, stub):
        await teller.was_asked()
        teller.says.put_nowait(FailedPreconditionError("off", reason="KV_EVENTS_OFF"))
        # Far more than the first pauses between tries.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await teller.asked.get()


async def test_load_is_told_and_silence_or_an_end_makes_it_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followers, "HEARTBEAT_TIMEOUT_S", 0.3)
    load = ReplicaLoad()
    changes = Changes(load, "take", "lost")
    async with telling() as (teller, stub):
        task = asyncio.create_task(follow_load(stub, load, lambda: 2))
        for end in (None, "silence"):
            await teller.was_asked()
            teller.says.put_nowait(
                scheduler_pb2.WatchLoadResponse(
                    num_requests_running=3, num_requests_waiting=2, num_tokens_waiting=9, ready=True
                )
            )
            await changes.until(lambda: load.is_known)
            assert (load.num_requests(4), load.num_tokens_waiting) == (7, 9)
            if end is None:
                teller.says.put_nowait(None)
            await changes.until(lambda: not load.is_known)
        await cancel_and_wait(task)
