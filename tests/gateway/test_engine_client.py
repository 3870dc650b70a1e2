"""What becomes of live requests when a scheduler is lost, drains or comes back, over a fake one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from gateway.engine_client import EngineClient, EngineSettings
from gateway.engine_stream import GatewayIdentity
from gateway.generation import AbortReason
from gateway.live_request import LiveRequest
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import common_pb2
from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.fake_tokenizer import encode
from tests.gateway.live import add_tokens, make_live

TIMEOUT_S = 20.0


class Client:
    """An engine client at work, and what it has told."""

    def __init__(self, target: str, recovery_timeout_s: float, twin: list[LiveRequest] | None):
        self._changed = asyncio.Event()
        self.twin = twin
        identity = GatewayIdentity("g", 1)
        settings = EngineSettings(identity, 5.0, recovery_timeout_s, use_model_defaults=False)
        self.client = EngineClient(target, settings, Mock(), self._changed.set, self._rehome)

    def _rehome(self, lost: EngineClient, request: LiveRequest) -> bool:
        if self.twin is not None:
            self.twin.append(request)
        return self.twin is not None

    async def until(self, condition: Callable[[EngineClient], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition(self.client):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def run_client(
    scheduler: FakeScheduler,
    recovery_timeout_s: float = 60.0,
    twin: list[LiveRequest] | None = None,
) -> AsyncIterator[Client]:
    running = Client(scheduler.target, recovery_timeout_s, twin)
    task = asyncio.create_task(running.client.run())
    try:
        yield running
    finally:
        await cancel_and_wait(task)


def live_request(max_tokens: int = 400) -> LiveRequest:
    return make_live(prompt=encode("abc"), max_tokens=max_tokens, temperature=0.0)


async def test_a_request_that_waits_for_its_engine_is_added_when_it_is_there() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        request = live_request()
        running.client.add(request)
        assert (running.client.num_requests, running.client.is_ready) == (1, False)
        await running.until(lambda client: client.is_ready)
        await scheduler.until(lambda: scheduler.adds)
        assert scheduler.adds[0].request_id == request.request.request_id


async def test_an_abort_before_the_engine_is_there_leaves_nothing() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        aborted, kept = live_request(), live_request()
        running.client.add(aborted)
        running.client.abort(aborted, AbortReason.CLIENT_GONE)
        running.client.abort(aborted, AbortReason.CLIENT_GONE)
        running.client.add(kept)
        await scheduler.until(lambda: scheduler.adds)
        assert len(scheduler.adds) == 1


async def test_a_lost_request_goes_on_with_its_output_when_the_engine_is_back() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        scheduler.frames_left = 3
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.frames_left == 0)
        scheduler.frames_left = None
        scheduler.lose_streams()
        await scheduler.until(lambda: len(scheduler.adds) == 2)
        assert scheduler.adds[1].resumed
        assert list(scheduler.adds[1].output_token_ids) == encode("cba")


async def test_a_lost_request_goes_to_a_twin_where_there_is_one() -> None:
    twin: list[LiveRequest] = []
    async with FakeScheduler() as scheduler, run_client(scheduler, twin=twin) as running:
        scheduler.go_on.clear()
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.adds)
        scheduler.lose_streams()
        await running.until(lambda client: bool(twin))
        assert (twin, running.client.num_requests) == ([request], 0)


async def test_a_request_leaves_an_engine_without_a_worker_for_a_twin() -> None:
    twin: list[LiveRequest] = []
    async with FakeScheduler() as scheduler, run_client(scheduler, twin=twin) as running:
        scheduler.go_on.clear()
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.adds)
        scheduler.is_recovering = True
        await scheduler.tell()
        moved = (request.request.request_id, common_pb2.ABORT_REASON_MOVED)
        await scheduler.until(lambda: scheduler.aborts == [moved])
        assert (twin, running.client.num_requests) == ([request], 0)
        assert running.client.is_recovering


async def test_a_request_stays_where_no_twin_is_until_there_is_one() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        scheduler.go_on.clear()
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.adds)
        scheduler.is_recovering = True
        await scheduler.tell()
        await running.until(lambda client: client.is_recovering)
        assert running.client.num_requests == 1
        running.twin = []
        await scheduler.tell()
        await running.until(lambda client: client.num_requests == 0)
        assert running.twin == [request]


async def test_suspicions_go_with_a_request() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        scheduler.frames_left = 1
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.frames_left == 0)
        scheduler.is_recovering = True
        await scheduler.tell(suspicions=2)
        await running.until(lambda client: client.is_recovering)
        scheduler.go_on.clear()
        scheduler.frames_left = None
        scheduler.lose_streams()
        await scheduler.until(lambda: len(scheduler.adds) == 2)
        assert scheduler.adds[1].suspicions == 2


async def test_a_token_clears_suspicions() -> None:
    request = live_request()
    request.num_suspicions = 2
    add_tokens(request, 5)
    assert request.num_suspicions == 0


async def test_another_model_ends_what_was_lost() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        scheduler.go_on.clear()
        request = live_request()
        running.client.add(request)
        await scheduler.until(lambda: scheduler.adds)
        scheduler.info.engine_fingerprint = "another"
        scheduler.lose_streams()
        await scheduler.until(lambda: len(scheduler.opens) == 2)
        await running.until(lambda client: request.is_over)
        assert len(scheduler.adds) == 1


async def test_what_is_added_to_one_that_left_moves_or_ends() -> None:
    async with FakeScheduler() as scheduler, run_client(scheduler) as running:
        running.client.retire()
        ended, moved = live_request(), live_request()
        running.client.add(ended)
        running.twin = []
        running.client.add(moved)
        assert (ended.is_over, moved.is_over, running.twin) == (True, False, [moved])
        assert running.client.num_requests == 0


async def test_one_that_was_lost_before_it_left_is_forgotten() -> None:
    async with FakeScheduler() as scheduler:
        async with run_client(scheduler) as running:
            await running.until(lambda client: client.is_ready)
            scheduler.lose_streams()
            await running.until(lambda client: not client.is_ready)
        running.client.retire()
        left = weakref.ref(running.client)
        del running
        gc.collect()
        assert left() is None


async def test_an_engine_that_stays_away_ends_its_requests() -> None:
    scheduler = FakeScheduler()
    async with scheduler:
        target = scheduler.target
    running = Client(target, 0.2, None)
    request = live_request()
    request.admission = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(running.client.run())
    running.client.add(request)
    with pytest.raises(ServiceUnavailableError) as caught:
        async with asyncio.timeout(TIMEOUT_S):
            await request.admission
    assert caught.value.reason == "ENGINE_LOST"
    await cancel_and_wait(task)
