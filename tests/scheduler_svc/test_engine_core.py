"""Requests through an engine: outputs, aborts, steps and workers that fail."""

import pytest

from pagewire.kit.errors import (
    ServiceUnavailableError,
)
from scheduler_svc.engine_state import EngineState
from scheduler_svc.executor import WorkerUnavailableError
from scheduler_svc.stop import FinishReason, Stop
from tests.scheduler_svc.factories import EOS
from tests.scheduler_svc.running_engine import PROMPT, Engine, running
from tests.scheduler_svc.sim_model import expected_output


async def test_a_request_gets_the_models_output():
    async with running() as engine:
        request_id = engine.add(max_tokens=6)
        await engine.client.wait_finished(request_id)
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 6, frozenset({EOS}))
    assert engine.client.finished[request_id].reason is FinishReason.LENGTH


async def test_all_outputs_of_a_step_for_one_client_come_together():
    async with running() as engine:
        ids = [engine.add(max_tokens=4) for _ in range(3)]
        await engine.client.wait_finished(*ids)
    assert engine.client.num_frames <= 5


async def test_the_worker_hears_of_the_last_end_though_nothing_runs():
    async with running() as engine:
        request_id = engine.add(max_tokens=1)
        await engine.client.wait_finished(request_id)
        await engine.executor.wait_steps(2)
    assert engine.executor.steps[-1].finished_req_ids == [request_id]
    assert not engine.executor.steps[-1].requests


async def test_requests_are_refused_before_the_first_worker_is_ready():
    engine = Engine()
    with pytest.raises(ServiceUnavailableError):
        engine.add()
    with pytest.raises(ServiceUnavailableError):
        engine.core.require_info()


async def test_an_abort_in_a_step_wins_over_completion():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=1)
        await engine.executor.in_step.wait()
        engine.core.finish_requests([request_id])
        assert engine.client.finished[request_id].reason is FinishReason.ABORT
        assert engine.core.make_stats().kv_cache_usage == 0
        engine.executor.go_on.set()
        other = engine.add(max_tokens=1)
        await engine.client.wait_finished(other)
    assert request_id not in engine.client.token_ids
    assert engine.client.finished[request_id].reason is FinishReason.ABORT


async def test_an_abort_can_count_as_a_stop():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add()
        engine.core.finish_requests([request_id], Stop(FinishReason.STOP))
    assert engine.client.finished[request_id].reason is FinishReason.STOP


async def test_a_detached_client_leaves_nothing_behind():
    async with running() as engine:
        engine.executor.go_on.clear()
        request_id = engine.add()
        await engine.executor.in_step.wait()
        engine.core.detach(engine.client_id, [request_id])
        stats = engine.core.make_stats()
        assert (stats.num_requests_running, stats.kv_cache_usage) == (0, 0)
    assert engine.client.finished == {}


async def test_no_token_is_lost_with_a_worker():
    async with running() as engine:
        ids = [engine.add([*PROMPT, number], max_tokens=20, ignore_eos=True) for number in range(5)]
        for times, number in enumerate((2, 5, 9), start=2):
            await engine.client.wait_tokens(ids[0], number)
            engine.executor.lose()
            await engine.wait_state(EngineState.READY, times)
        await engine.client.wait_finished(*ids)
        assert engine.core.counters.num_workers_lost == 3
    for number, request_id in enumerate(ids):
        expected = expected_output([*PROMPT, number], 20)
        assert engine.client.token_ids[request_id] == expected


async def test_requests_are_taken_while_the_worker_is_away():
    async with running() as engine:
        engine.executor.unavailable = [WorkerUnavailableError("away")] * 3
        engine.executor.lose()
        await engine.wait_state(EngineState.RECOVERING)
        request_id = engine.add(max_tokens=2)
        await engine.client.wait_finished(request_id)


async def test_a_failed_step_is_computed_again_on_the_same_worker():
    async with running() as engine:
        engine.executor.num_failing_steps = 2
        request_id = engine.add(max_tokens=4, ignore_eos=True)
        await engine.client.wait_finished(request_id)
        assert engine.core.counters.num_workers_lost == 0
    assert engine.executor.num_initialized == 1
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 4)


async def test_steps_that_fail_in_the_middle_change_no_token():
    async with running() as engine:
        ids = [engine.add([*PROMPT, number], max_tokens=20, ignore_eos=True) for number in range(5)]
        for number in (2, 5, 9):
            await engine.client.wait_tokens(ids[0], number)
            engine.executor.num_failing_steps = 1
        await engine.client.wait_finished(*ids)
    assert engine.executor.num_failing_steps == 0
    for number, request_id in enumerate(ids):
        assert engine.client.token_ids[request_id] == expected_output([*PROMPT, number], 20)
