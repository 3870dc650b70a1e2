"""A sleep of the whole engine: what it stops, frees and lets wait, and how it ends."""

import asyncio

import pytest

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ServiceUnavailableError,
)
from scheduler_svc.engine_state import EngineState
from scheduler_svc.pause import PauseMode, PauseState
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.running_engine import PROMPT, running
from tests.scheduler_svc.sim_model import expected_output

NUM_TOKENS = 8


def assert_complete(engine, request_id):
    expected = expected_output(PROMPT, NUM_TOKENS)
    assert engine.client.token_ids[request_id] == expected


async def add_running(engine):
    """A request whose first steps are done."""
    num_steps = len(engine.executor.steps)
    request_id = engine.add(max_tokens=NUM_TOKENS, ignore_eos=True)
    await engine.executor.wait_steps(num_steps + 3)
    return request_id


async def test_level_0_is_only_a_pause():
    async with running() as engine:
        await engine.core.sleep.sleep(0, PauseMode.ABORT)
        assert engine.core.pause_state is PauseState.PAUSED_NEW
        request_id = engine.add(max_tokens=NUM_TOKENS, ignore_eos=True)
        assert not await engine.core.sleep.wake_up([])
        await engine.client.wait_finished(request_id)
    assert engine.executor.sleeps == []
    assert_complete(engine, request_id)


@pytest.mark.parametrize("level", [1, 2])
async def test_requests_that_come_meanwhile_wait(level):
    async with running() as engine:
        await engine.core.sleep.sleep(level, PauseMode.ABORT)
        assert engine.executor.sleeps == [level]
        num_steps = len(engine.executor.steps)
        request_id = engine.add(max_tokens=NUM_TOKENS, ignore_eos=True)
        assert engine.core.make_stats().num_requests_waiting == 1
        assert not await engine.core.sleep.wake_up([])
        await engine.client.wait_finished(request_id)
        assert len(engine.executor.steps) > num_steps
    assert_complete(engine, request_id)


async def test_requests_that_stay_go_on_where_they_were():
    async with running() as engine:
        request_id = await add_running(engine)
        await engine.core.sleep.sleep(1, PauseMode.KEEP)
        stats = engine.core.make_stats()
        assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 1)
        assert stats.kv_cache_usage == 0
        await engine.core.sleep.wake_up([])
        await engine.client.wait_finished(request_id)
    assert_complete(engine, request_id)


async def test_requests_end_by_default_or_finish_first():
    async with running() as engine:
        aborted = await add_running(engine)
        await engine.core.sleep.sleep(1, PauseMode.ABORT)
        assert engine.client.finished[aborted].reason is FinishReason.ABORT
        await engine.core.sleep.wake_up([])
        finished = await add_running(engine)
        await engine.core.sleep.sleep(1, PauseMode.WAIT)
        assert engine.client.finished[finished].reason is FinishReason.LENGTH
    assert_complete(engine, finished)


async def test_cached_prefixes_are_forgotten():
    async with running() as engine:
        for sleeps in (False, True):
            if sleeps:
                await engine.core.sleep.sleep(1, PauseMode.ABORT)
                await engine.core.sleep.wake_up([])
            hits = engine.core.make_stats().prefix_cache_hits
            await engine.client.wait_finished(engine.add(max_tokens=2))
            await engine.client.wait_finished(engine.add(max_tokens=2))
            # The first after a sleep finds nothing, the second what the first left.
            assert engine.core.make_stats().prefix_cache_hits - hits == 4


async def test_an_abort_of_a_kept_request_waits_for_the_worker_to_wake():
    async with running() as engine:
        request_id = await add_running(engine)
        await engine.core.sleep.sleep(1, PauseMode.KEEP)
        num_steps = len(engine.executor.steps)
        engine.core.finish_requests([request_id])
        other = engine.add(max_tokens=NUM_TOKENS, ignore_eos=True)
        await engine.core.sleep.wake_up([])
        await engine.client.wait_finished(other)
        assert len(engine.executor.steps) > num_steps
    assert_complete(engine, other)


async def test_the_engine_resumes_when_all_parts_are_awake():
    async with running() as engine:
        await engine.core.sleep.sleep(2, PauseMode.ABORT)
        assert await engine.core.sleep.wake_up(["weights"])
        assert engine.core.pause_state is not PauseState.UNPAUSED
        with pytest.raises(FailedPreconditionError, match="WakeUp"):
            engine.core.resume()
        assert not await engine.core.sleep.wake_up(["kv_cache"])
        assert engine.core.pause_state is PauseState.UNPAUSED


async def test_a_deeper_sleep_frees_more_and_a_lighter_one_nothing():
    async with running() as engine:
        for level in (1, 0, 2, 1):
            await engine.core.sleep.sleep(level, PauseMode.ABORT)
        assert engine.executor.sleeps == [1, 2]
        assert engine.core.sleep.level == 2


@pytest.mark.parametrize("level", [-1, 3])
async def test_a_level_that_there_is_not_pauses_nothing(level):
    async with running() as engine:
        with pytest.raises(InvalidRequestError):
            await engine.core.sleep.sleep(level, PauseMode.ABORT)
        assert engine.core.pause_state is PauseState.UNPAUSED


async def test_what_the_worker_refuses_is_told_and_changes_nothing():
    async with running() as engine:
        engine.executor.sleep_error = FailedPreconditionError("no", reason="KV_CACHE_MEMORY")
        with pytest.raises(FailedPreconditionError):
            await engine.core.sleep.sleep(1, PauseMode.ABORT)
        assert engine.core.sleep.level == 0
        engine.executor.sleep_error = None
        await engine.core.sleep.sleep(1, PauseMode.ABORT)
        engine.executor.sleep_error = FailedPreconditionError("no", reason="KV_CACHE_MEMORY")
        with pytest.raises(FailedPreconditionError):
            await engine.core.sleep.wake_up([])
        assert engine.core.sleep.level == 1
        assert engine.core.pause_state is not PauseState.UNPAUSED


async def test_without_a_worker_there_is_nothing_to_put_to_sleep():
    async with running() as engine:
        engine.executor.unavailable = [FailedPreconditionError("no", reason="X")] * 1000
        engine.executor.lose()
        await engine.wait_state(EngineState.RECOVERING)
        with pytest.raises(ServiceUnavailableError):
            await engine.core.sleep.sleep(1, PauseMode.ABORT)
        assert engine.core.sleep.level == 0


async def test_a_worker_that_comes_in_a_sleep_sleeps_as_well():
    async with running() as engine:
        request_id = await add_running(engine)
        await engine.core.sleep.sleep(2, PauseMode.KEEP)
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        assert engine.executor.sleeps == [2, 2]
        await engine.core.sleep.wake_up([])
        await engine.client.wait_finished(request_id)
    assert_complete(engine, request_id)


async def test_a_resume_before_the_sleep_calls_it_off():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=NUM_TOKENS, ignore_eos=True)
        await engine.executor.in_step.wait()
        sleep = asyncio.ensure_future(engine.core.sleep.sleep(1, PauseMode.WAIT))
        await asyncio.sleep(0)
        assert engine.core.pause_state is PauseState.PAUSED_NEW
        engine.core.resume()
        engine.executor.go_on.set()
        with pytest.raises(FailedPreconditionError):
            await sleep
        await engine.client.wait_finished(request_id)
        assert engine.executor.sleeps == []
    assert_complete(engine, request_id)
