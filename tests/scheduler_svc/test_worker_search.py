"""Claiming a worker again and again, and when a refusal is the end."""

import pytest

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
)
from scheduler_svc.engine_state import EngineState
from scheduler_svc.executor import WorkerUnavailableError
from scheduler_svc.worker_search import MAX_BACKOFF_S, claim_worker
from tests.scheduler_svc.running_engine import PROMPT, Engine, running
from tests.scheduler_svc.sim_model import expected_output


async def test_a_worker_lost_while_idle_is_claimed_again():
    async with running() as engine:
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        request_id = engine.add(max_tokens=2)
        await engine.client.wait_finished(request_id)
    assert engine.client.recovering[-2:] == [True, False]


async def test_claiming_goes_on_until_a_worker_is_there():
    engine = Engine()
    engine.executor.unavailable = [WorkerUnavailableError("not yet")] * 20
    async with running(engine):
        assert engine.executor.num_initialized == 1


async def test_a_refusal_by_the_first_worker_ends_the_engine():
    engine = Engine()
    engine.executor.unavailable = [InvalidRequestError("no such model")]
    with pytest.raises(InvalidRequestError):
        await engine.core.run()


async def test_a_failed_first_allocation_ends_the_engine():
    engine = Engine()
    engine.executor.allocation_error = FailedPreconditionError("out of memory")
    with pytest.raises(FailedPreconditionError, match="out of memory"):
        await engine.core.run()


async def test_a_refusal_after_the_first_worker_does_not_end_the_engine():
    async with running() as engine:
        engine.executor.unavailable = [InvalidRequestError("odd")]
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)


async def test_a_worker_lost_behind_a_failed_step_is_claimed_again():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=6, ignore_eos=True)
        await engine.executor.wait_steps(2)
        engine.executor.num_failing_steps = 1
        engine.executor.on_failure = engine.executor.lose
        engine.executor.go_on.set()
        await engine.client.wait_finished(request_id)
    assert engine.executor.num_initialized == 2
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 6)


async def test_a_worker_is_claimed_after_however_many_failed_steps():
    async with running() as engine:
        engine.core._steps.num_failed_steps = 2000
        engine.executor.lose()
        await engine.wait_state(EngineState.READY, times=2)
        request_id = engine.add(max_tokens=1)
        await engine.client.wait_finished(request_id)


async def test_tries_come_less_and_less_often_up_to_a_bound():
    slept, tries = [], iter([WorkerUnavailableError("none")] * 8)

    async def claim():
        for error in tries:
            raise error

    async def sleep(delay_s):
        slept.append(delay_s)

    await claim_worker(claim, num_failed_steps=0, is_first=True, sleep=sleep)
    assert slept[:3] == [0.1, 0.2, 0.4]
    assert slept == sorted(slept)
    assert slept[-1] == MAX_BACKOFF_S


async def test_a_worker_that_failed_steps_is_not_asked_again_at_once():
    slept = []

    async def claim():
        assert slept

    async def sleep(delay_s):
        slept.append(delay_s)

    await claim_worker(claim, num_failed_steps=1, is_first=False, sleep=sleep)
    assert slept == [0.2]
