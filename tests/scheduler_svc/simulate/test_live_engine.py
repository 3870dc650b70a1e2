"""The simulation decides as the live engine does, and measures what its clients would."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest

from pagewire.engine_config import EngineConfig
from pagewire.sampling_params import SamplingParams
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_info import make_limits
from scheduler_svc.kv_sizing import plan_kv_cache
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.simulate.prompt import VOCAB_SIZE, PromptMaker
from scheduler_svc.simulate.routing import RoundRobin
from scheduler_svc.simulate.simulation import Simulation
from scheduler_svc.simulate.trace import TraceRequest
from scheduler_svc.simulate.virtual_engine import VirtualEngine
from scheduler_svc.step_pipeline import MAX_STEPS_IN_FLIGHT
from tests.scheduler_svc.fakes import FakeClient, FakeExecutor, make_config, make_facts
from tests.scheduler_svc.simulate.factories import LinearStepTime

STEP_TIME = LinearStepTime()
FACTS = make_facts(vocab_size=VOCAB_SIZE, eos_token_ids=frozenset())


class TimedClient(FakeClient):
    """Notes when each token of each request comes, on the executor's clock."""

    def __init__(self, executor):
        super().__init__()
        self._executor = executor
        self.token_times_s: dict[str, list[float]] = {}

    def put_outputs(self, outputs, timings):
        super().put_outputs(outputs, timings)
        for request_id in outputs.request_ids:
            self.token_times_s.setdefault(request_id, []).append(self._executor.now_s)


class VirtualExecutor(FakeExecutor):
    """A worker on a virtual clock, which also brings the arrivals; it never lets the loop rest
    while there is something in flight."""

    def __init__(self, trace):
        super().__init__()
        self.facts = FACTS
        self.now_s = 0.0
        self.core = None
        self.client_id = None
        self._prompts = PromptMaker(64)
        self._arrivals = deque(enumerate(trace))
        self._durations_s = deque()

    async def send(self, output):
        self._durations_s.append(STEP_TIME.seconds(output))
        await super().send(output)

    async def receive(self):
        output = self.in_flight.popleft()
        self.now_s += self._durations_s.popleft()
        self._add_due()
        asyncio.get_running_loop().call_soon(self.jump_if_idle)
        return self._model.execute(output)

    def jump_if_idle(self):
        """Go to the next arrival; runs only when the engine waits."""
        stats = self.core.make_stats()
        is_idle = stats.num_requests_running + stats.num_requests_waiting == 0
        if is_idle and not self.in_flight and self._arrivals:
            self.now_s = max(self.now_s, self._arrivals[0][1].arrival_time_s)
            self._add_due()

    def _add_due(self):
        while self._arrivals and self._arrivals[0][1].arrival_time_s <= self.now_s:
            number, request = self._arrivals.popleft()
            prompt = self._prompts.make(
                request.num_prompt_tokens,
                number,
                request.shared_prefix_id,
                request.num_shared_prefix_tokens,
            )
            params = SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True)
            self.core.add_request(
                EngineCoreRequest(
                    str(number),
                    list(prompt),
                    params,
                    request.arrival_time_s,
                    client_id=self.client_id,
                    priority=request.priority,
                )
            )


def make_trace(*, with_priorities: bool) -> list[TraceRequest]:
    """Bursts that overfill the pool, then a pause in which the engine has nothing to do."""
    rng = random.Random(7)
    trace, now_s = [], 0.0
    for number in range(60):
        now_s += 5.0 if number % 20 == 0 else rng.choice((0.0, 0.001, 0.02))
        prefix = rng.choice((None, "a", "b"))
        trace.append(
            TraceRequest(
                now_s,
                rng.randint(13, 40),
                rng.randint(1, 20),
                prefix,
                12 if prefix else 0,
                rng.randint(0, 2) if with_priorities else 0,
            )
        )
    return trace


def decisions(output):
    """What a step says, as plain data."""
    return (
        output.step,
        [request.request_id for request in output.requests],
        list(output.num_scheduled_tokens),
        [(new.request_id, new.num_computed_tokens) for new in output.scheduled_new_reqs],
        [list(block_ids) for block_ids in output.scheduled_cached_reqs.new_block_ids],
        list(output.preempted_req_ids),
        list(output.finished_req_ids),
    )


def simulated(config: EngineConfig, trace, max_in_flight):
    steps = []
    limits = make_limits(config, FACTS, plan_kv_cache(config, FACTS))
    engine = VirtualEngine(
        limits,
        STEP_TIME,
        max_steps_in_flight=max_in_flight,
        on_step=lambda output: steps.append(decisions(output)),
    )
    Simulation([engine], RoundRobin()).run(trace)
    return steps, engine.close()


async def lived(config: EngineConfig, trace):
    executor = VirtualExecutor(trace)
    core = EngineCore(config, executor, clock=lambda: executor.now_s)
    client = TimedClient(executor)
    executor.core, executor.client_id = core, core.attach(client)
    core.on_state = lambda state: asyncio.get_running_loop().call_soon(executor.jump_if_idle)
    task = asyncio.create_task(core.run())
    try:
        await client.wait_finished(*map(str, range(len(trace))))
    finally:
        task.cancel()
        await asyncio.wait((task,))
    return [decisions(output) for output in executor.steps], client


def small_config(**scheduler) -> EngineConfig:
    config = make_config(num_gpu_blocks_override=30)
    return replace(config, scheduler=replace(config.scheduler, **scheduler))


policies = pytest.mark.parametrize(
    "policy",
    [
        {},
        {"scheduling_policy": "priority"},
        # Prompts are computed side by side, and nothing is left of the budget.
        {"long_prefill_token_threshold": 6, "max_num_batched_tokens": 12},
    ],
    ids=["fcfs", "priority", "threshold"],
)
overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlap"])


@policies
@overlaps
async def test_every_step_is_the_live_engines(overlap, policy):
    config = small_config(async_scheduling=overlap, **policy)
    trace = make_trace(with_priorities="scheduling_policy" in policy)
    steps, measures = simulated(config, trace, MAX_STEPS_IN_FLIGHT if overlap else 1)
    live_steps, _ = await lived(config, trace)
    # The live one is stopped before it tells its worker of the last ends.
    assert live_steps == steps[: len(live_steps)]
    assert len(steps) - len(live_steps) <= 1
    assert measures.num_finished == len(trace)
    assert measures.num_preemptions > 0
    assert measures.prefix_cache_hits > 0


@policies
@overlaps
async def test_latencies_are_those_that_a_client_sees(overlap, policy):
    config = small_config(async_scheduling=overlap, **policy)
    trace = make_trace(with_priorities="scheduling_policy" in policy)
    _, measures = simulated(config, trace, MAX_STEPS_IN_FLIGHT if overlap else 1)
    _, client = await lived(config, trace)
    times_s = client.token_times_s
    arrivals_s = {str(number): request.arrival_time_s for number, request in enumerate(trace)}
    ttft_s = [times[0] - arrivals_s[i] for i, times in times_s.items()]
    e2e_s = [times[-1] - arrivals_s[i] for i, times in times_s.items()]
    itl_s = [b - a for times in times_s.values() for a, b in pairwise(times)]
    for ours, theirs in (
        (measures.ttft_s, ttft_s),
        (measures.e2e_s, e2e_s),
        (measures.itl_s, itl_s),
    ):
        shares = [(rank + 0.5) / len(theirs) for rank in range(len(theirs))]
        assert ours.num_samples == len(theirs)
        assert ours.quantiles(shares) == pytest.approx(sorted(theirs))
