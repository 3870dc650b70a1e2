"""Pauses, drains and resets of a running engine."""

import asyncio

import pytest

from pagewire.kit.errors import (
    PagewireError,
    ServiceUnavailableError,
)
from scheduler_svc.engine_state import EngineState
from scheduler_svc.pause import PauseMode
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.fakes import FakeClient
from tests.scheduler_svc.running_engine import PROMPT, running
from tests.scheduler_svc.sim_model import expected_output


async def test_a_client_that_comes_during_a_drain_is_told_so():
    async with running() as engine:
        await engine.core.drain(timeout_s=0)
        late = FakeClient()
        engine.core.attach(late)
    assert late.draining == [0]


async def test_the_prefix_cache_can_be_reset_between_steps():
    async with running() as engine:
        first = engine.add(max_tokens=1)
        await engine.client.wait_finished(first)
        assert engine.core.reset_prefix_cache(reset_running_requests=False)
        second = engine.add(max_tokens=1)
        await engine.client.wait_finished(second)
        assert engine.client.finished[second].num_cached_tokens == 0


async def test_a_reset_needs_idle_blocks_unless_it_preempts():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.executor.in_step.wait()
        assert not engine.core.reset_prefix_cache(reset_running_requests=False)
        assert engine.core.reset_prefix_cache(reset_running_requests=True)
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 30)


async def test_a_pause_that_waits_ends_when_running_requests_have_finished():
    async with running() as engine:
        engine.executor.go_on.clear()
        first = engine.add(max_tokens=10, ignore_eos=True)
        await engine.executor.in_step.wait()
        pause = asyncio.create_task(engine.core.pause(PauseMode.WAIT))
        second = engine.add(max_tokens=2)
        await asyncio.sleep(0)
        assert not pause.done()
        engine.executor.go_on.set()
        await pause
        assert list(engine.client.finished) == [first]
        assert engine.core.make_stats().num_requests_waiting == 1
        engine.core.resume()
        await engine.client.wait_finished(second)
    assert len(engine.client.token_ids[first]) == 10


async def test_a_pause_that_keeps_stops_requests_where_they_are():
    async with running() as engine:
        request_id = engine.add(max_tokens=40, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 3)
        await engine.core.pause(PauseMode.KEEP)
        num_tokens = len(engine.client.token_ids[request_id])
        other = engine.add(max_tokens=1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(engine.client.token_ids[request_id]) == num_tokens < 40
        assert other not in engine.client.token_ids
        engine.core.resume()
        await engine.client.wait_finished(request_id, other)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 40)


async def test_a_pause_that_aborts_ends_all_requests_and_takes_new_ones_into_the_queue():
    async with running() as engine:
        engine.executor.go_on.clear()
        ids = [engine.add() for _ in range(12)]
        await engine.executor.in_step.wait()
        pause = asyncio.create_task(engine.core.pause(PauseMode.ABORT))
        await engine.client.wait_finished(*ids)
        assert {end.reason for end in engine.client.finished.values()} == {FinishReason.ABORT}
        engine.executor.go_on.set()
        await pause
        later = engine.add(max_tokens=1)
        assert engine.core.make_stats().num_requests_waiting == 1
        engine.core.resume()
        await engine.client.wait_finished(later)


async def test_a_pause_outlives_the_worker():
    async with running() as engine:
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 2)
        await engine.core.pause(PauseMode.KEEP)
        num_tokens = len(engine.client.token_ids[request_id])
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(engine.client.token_ids[request_id]) == num_tokens
        engine.core.resume()
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 30)


async def test_a_drain_does_not_wait_for_requests_that_a_pause_keeps():
    async with running() as engine:
        request_id = engine.add(max_tokens=30, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 2)
        await engine.core.pause(PauseMode.KEEP)
        async with asyncio.timeout(10):
            await engine.core.drain(timeout_s=3600)
    assert engine.client.error.reason == "DRAINING"


async def test_a_scheduler_that_admits_nothing_is_told_and_goes_on_when_it_can(caplog):
    async with running() as engine:
        pool = engine.core._intake.scheduler.kv_cache._pool
        leaked = pool.get_new_blocks(pool.num_free_blocks)
        request_id = engine.add(max_tokens=2)
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.core.liveness.is_stalled
        pool.free_blocks(leaked)
        await engine.client.wait_finished(request_id)
    assert engine.core.liveness.num_stalls == 1
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert ["scheduler_stalled" in str(record.msg) for record in errors] == [True]


async def test_a_paused_engine_is_not_stalled():
    async with running() as engine:
        await engine.core.pause(PauseMode.WAIT)
        engine.add(max_tokens=2)
        for _ in range(100):
            await asyncio.sleep(0)
    assert engine.core.liveness.num_stalls == 0


async def test_a_drain_lets_requests_finish_and_takes_no_more():
    async with running() as engine:
        request_id = engine.add(max_tokens=8)
        drain = asyncio.create_task(engine.core.drain(timeout_s=60))
        await asyncio.sleep(0)
        with pytest.raises(ServiceUnavailableError) as error:
            engine.add()
        assert error.value.reason == "DRAINING"
        await drain
    assert request_id in engine.client.finished
    assert engine.client.draining == [60]
    assert engine.client.error.reason == "DRAINING"


async def test_a_drain_lets_go_of_what_does_not_finish_in_time():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=8)
        await engine.core.drain(timeout_s=0)
        assert request_id not in engine.client.finished
        assert isinstance(engine.client.error, PagewireError)
        assert engine.core.make_stats().num_requests_running == 0
