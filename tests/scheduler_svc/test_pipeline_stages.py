"""Steps of several pipeline stages: more of them in flight, a decoding request in one of them."""

import asyncio
import random
from collections import Counter, deque
from contextlib import asynccontextmanager

import pytest

from pagewire.kit.tasks import cancel_and_wait
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.factories import (
    EOS,
    add,
    make_core_request,
    make_scheduler,
    sample,
    scheduled,
)
from tests.scheduler_svc.fakes import FakeClient, FakeExecutor, make_config
from tests.scheduler_svc.running_engine import no_sleep
from tests.scheduler_svc.sim_model import SimModel, expected_output


def decoding(number, **limits):
    """A scheduler of so many requests that have their first token."""
    scheduler = make_scheduler(**limits)
    requests = [add(scheduler, 5, max_tokens=20) for _ in range(number)]
    output = scheduler.schedule(0.0)
    scheduler.update_from_output(output, sample(output))
    assert all(request.num_output_tokens == 1 for request in requests)
    return scheduler, requests


def test_with_one_stage_a_token_under_way_is_built_upon():
    scheduler, _ = decoding(1)
    assert not scheduler.schedule(0.0).is_empty
    assert not scheduler.schedule(0.0).is_empty


def test_a_decoding_request_is_in_one_step():
    scheduler, (request,) = decoding(1, num_stages=2)
    first = scheduler.schedule(0.0)
    assert scheduled(first) == {request.request_id: 1}
    assert scheduler.schedule(0.0).is_empty
    scheduler.update_from_output(first, sample(first))
    assert scheduled(scheduler.schedule(0.0)) == {request.request_id: 1}


def test_each_stage_gets_its_share_of_the_requests():
    scheduler, requests = decoding(5, num_stages=2)
    ids = [request.request_id for request in requests]
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert [list(scheduled(step)) for step in (first, second)] == [ids[:3], ids[3:]]
    assert scheduler.schedule(0.0).is_empty
    scheduler.update_from_output(first, sample(first))
    assert list(scheduled(scheduler.schedule(0.0))) == ids[:3]


def test_a_chunk_of_a_prompt_may_follow_the_one_under_way():
    scheduler = make_scheduler(num_stages=3, max_num_batched_tokens=4, max_num_seqs=4)
    request = add(scheduler, 10)
    steps = [scheduler.schedule(0.0) for _ in range(4)]
    assert [scheduled(step).get(request.request_id) for step in steps] == [4, 4, 2, None]


def test_stages_must_be_positive():
    with pytest.raises(ValueError, match="num_stages=0: must be at least 1"):
        make_scheduler(num_stages=0)


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_outputs_are_those_of_requests_alone(seed, num_stages):
    """Chunks, prefix hits, preemption and ends by a token, with every stage busy."""
    rng = random.Random(seed)
    scheduler = make_scheduler(
        num_stages=num_stages, num_blocks=30, max_num_batched_tokens=24, max_model_len=80
    )
    model, in_flight = SimModel(30, 4), deque()
    common = [rng.randrange(EOS) for _ in range(9)]
    requests = [
        add(
            scheduler,
            common[: rng.choice([0, 9])] + [rng.randrange(EOS) for _ in range(rng.randint(1, 30))],
            max_tokens=rng.randint(1, 25),
        )
        for _ in range(20)
    ]
    widest = 0
    while scheduler.has_requests or in_flight:
        while len(in_flight) <= num_stages and scheduler.has_work:
            output = scheduler.schedule(0.0)
            if output.is_empty:
                break
            in_flight.append(output)
        draws = Counter(
            request.request_id
            for output in in_flight
            for request, drawn in zip(output.requests, output.draws, strict=True)
            if drawn and not request.ignores_outputs_of(output.step)
        )
        assert max(draws.values(), default=0) <= 1
        widest = max(widest, len(in_flight))
        output = in_flight.popleft()
        scheduler.update_from_output(output, model.execute(output))
        scheduler.check_integrity()
    assert widest >= num_stages
    for request in requests:
        params, prompt = request.sampling_params, request.core_request.prompt_token_ids
        expected = expected_output(prompt, params.max_tokens, frozenset({EOS}))
        assert request.output_token_ids == expected


class StagedExecutor(FakeExecutor):
    def __init__(self):
        super().__init__()
        self.num_stages = 2


@asynccontextmanager
async def running_in_stages():
    executor, client, ready = StagedExecutor(), FakeClient(), asyncio.Event()
    core = EngineCore(make_config(), executor, sleep=no_sleep)
    core.on_state = lambda state: ready.set() if state is EngineState.READY else None
    client_id = core.attach(client)

    def add_request(prompt, **overrides):
        request = make_core_request(prompt, client_id=client_id, **overrides)
        core.add_request(request)
        return request.request_id

    task = asyncio.create_task(core.run())
    try:
        await ready.wait()
        yield executor, client, add_request
    finally:
        await cancel_and_wait(task)


async def test_every_stage_has_a_step_and_one_more_is_queued():
    async with running_in_stages() as (executor, client, add_request):
        executor.go_on.clear()
        ids = [add_request(32, max_tokens=2) for _ in range(4)]
        await executor.wait_in_flight(3)
        executor.go_on.set()
        await client.wait_finished(*ids)
        assert executor.max_in_flight == 3


async def test_the_step_of_every_stage_is_suspected_when_the_group_is_lost():
    """A request that kills the first stage is in a later step than the oldest."""
    async with running_in_stages() as (executor, client, add_request):
        executor.go_on.clear()
        first, second = add_request(32, max_tokens=2), add_request(32, max_tokens=2)
        for number in (1, 2):
            await executor.wait_in_flight(2)
            executor.lose()
            await executor.wait_initialized(1 + number)
        # Both run alone now.
        await executor.wait_in_flight(1)
        third = add_request(8, max_tokens=2)
        executor.lose()
        executor.go_on.set()
        await client.wait_finished(first, second, third)
    assert client.finished[first].reason is FinishReason.ERROR
    assert client.finished[second].reason is FinishReason.LENGTH
    together = [{request.request_id for request in step.requests} for step in executor.steps]
    assert {first} in together
    assert {second, third} not in together
