"""The engine with a step queued behind the one that runs."""

import asyncio

import pytest

from scheduler_svc.engine_state import EngineState
from scheduler_svc.metrics import EngineCollector
from scheduler_svc.output import ModelRunnerOutput
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.factories import EOS, scheduled
from tests.scheduler_svc.fakes import FakeExecutor, make_config
from tests.scheduler_svc.running_engine import PROMPT, Engine, running
from tests.scheduler_svc.sim_model import expected_output

EOS_IDS = frozenset({EOS})


def engine_of(async_scheduling, executor=None, **cache):
    return Engine(make_config(async_scheduling=async_scheduling, **cache), executor)


@pytest.mark.parametrize(("async_scheduling", "most"), [(True, 2), (False, 1)])
async def test_at_most_two_steps_are_in_flight_and_one_without_overlap(async_scheduling, most):
    async with running(engine_of(async_scheduling)) as engine:
        request_id = engine.add(max_tokens=20)
        await engine.client.wait_finished(request_id)
    assert engine.executor.max_in_flight == most
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 20, EOS_IDS)


async def test_a_step_is_queued_before_the_one_that_runs_has_answered():
    async with running(engine_of(True)) as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=20)
        await engine.executor.wait_steps(2)
        first, second = engine.executor.steps
        assert scheduled(first) == {request_id: len(PROMPT)}
        assert scheduled(second) == {request_id: 1}
        assert engine.client.token_ids == {}


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("num_blocks", [17, 200])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
async def test_outputs_are_exact_on_any_pool_with_and_without_overlap(
    async_scheduling, num_blocks, enable_prefix_caching
):
    cache = {
        "num_gpu_blocks_override": num_blocks,
        "enable_prefix_caching": enable_prefix_caching,
    }
    async with running(engine_of(async_scheduling, **cache)) as engine:
        prompts = [[*PROMPT * (1 + number % 3), number] for number in range(32)]
        ids = [engine.add(prompt, max_tokens=15) for prompt in prompts]
        await engine.client.wait_finished(*ids)
        assert (engine.core.make_stats().num_preemptions > 0) == (num_blocks == 17)
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert engine.client.token_ids[request_id] == expected_output(prompt, 15, EOS_IDS)


async def test_a_worker_killed_with_two_steps_in_flight_loses_no_token():
    async with running(engine_of(True)) as engine:
        prompts = [[*PROMPT, number] for number in range(5)]
        ids = [engine.add(prompt, max_tokens=20, ignore_eos=True) for prompt in prompts]
        for times, number in enumerate((1, 5, 9), start=2):
            await engine.client.wait_tokens(ids[0], number)
            engine.executor.go_on.clear()
            await engine.executor.wait_in_flight(2)
            engine.executor.lose()
            engine.executor.go_on.set()
            await engine.wait_state(EngineState.READY, times)
        await engine.client.wait_finished(*ids)
        assert engine.core.counters.num_workers_lost == 3
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert engine.client.token_ids[request_id] == expected_output(prompt, 20)


async def test_an_abort_with_two_steps_in_flight_wins_over_completion():
    async with running(engine_of(True)) as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=2)
        await engine.executor.wait_in_flight(2)
        engine.core.finish_requests([request_id])
        assert engine.client.finished[request_id].reason is FinishReason.ABORT
        assert engine.core.make_stats().kv_cache_usage == 0
        engine.executor.go_on.set()
        other = engine.add(max_tokens=3)
        await engine.client.wait_finished(other)
    assert request_id not in engine.client.token_ids
    assert engine.client.token_ids[other] == expected_output(PROMPT, 3, EOS_IDS)


async def test_a_drain_waits_for_both_steps_in_flight():
    async with running(engine_of(True)) as engine:
        engine.executor.go_on.clear()
        request_id = engine.add(max_tokens=2, ignore_eos=True)
        await engine.executor.wait_in_flight(2)
        drain = asyncio.create_task(engine.core.drain(timeout_s=60))
        await asyncio.sleep(0)
        engine.executor.go_on.set()
        await drain
    assert engine.client.token_ids[request_id] == expected_output(PROMPT, 2)
    assert engine.client.finished[request_id].reason is FinishReason.LENGTH


@pytest.mark.parametrize("async_scheduling", [True, False])
async def test_an_end_by_eos_costs_one_token_with_overlap_and_none_without(async_scheduling):
    async with running(engine_of(async_scheduling)) as engine:
        # Prompts whose output ends by EOS, and all else by length.
        prompts = [[number] for number in range(400)]
        outputs = [expected_output(prompt, 4, EOS_IDS) for prompt in prompts]
        ends = [output[-1] == EOS and len(output) < 4 for output in outputs]
        assert sum(ends) > 0
        ids = [engine.add(prompt, max_tokens=4) for prompt in prompts]
        await engine.client.wait_finished(*ids)
        await engine.executor.wait_empty()
        assert engine.core.make_stats().num_preemptions == 0
    num_scheduled = sum(sum(scheduled(output).values()) for output in engine.executor.steps)
    # A prompt of one token and all outputs but the last are computed.
    num_useful = sum(map(len, outputs))
    assert num_scheduled == num_useful + async_scheduling * sum(ends)


class SlowExecutor(FakeExecutor):
    """Says that the worker had no step for a second before each one."""

    async def receive(self) -> ModelRunnerOutput:
        result = await super().receive()
        return ModelRunnerOutput(result.step, result.sampled_token_ids, idle_ns=10**9)


async def test_the_time_without_a_step_counts_while_there_is_work():
    async with running(engine_of(True, SlowExecutor())) as engine:
        request_id = engine.add(max_tokens=5, ignore_eos=True)
        await engine.client.wait_finished(request_id)
    # Before the first step there was nothing to do.
    assert engine.core.counters.worker_idle_ns == 4 * 10**9
    figures = {metric.name: metric for metric in EngineCollector(engine.core).collect()}
    (sample,) = figures["pagewire:worker_idle_seconds"].samples
    assert sample.value == 4.0
