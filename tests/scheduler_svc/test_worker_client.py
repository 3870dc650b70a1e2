import asyncio
from collections import deque
from contextlib import asynccontextmanager

import pytest

from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError
from pagewire.kit.pulse import Pulse
from pagewire.v1 import common_pb2
from scheduler_svc import execute_stream, worker_claim
from scheduler_svc.executor import (
    KvCachePlan,
    StepFailedError,
    WorkerLostError,
    WorkerUnavailableError,
)
from scheduler_svc.output import RowError
from scheduler_svc.worker_client import GrpcExecutor
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.factories import add, make_scheduler
from tests.scheduler_svc.fakes import make_config
from tests.scheduler_svc.sim_model import expected_output

PLAN = KvCachePlan(num_blocks=101, block_size=4, max_model_len=64)


@asynccontextmanager
async def workers(number=1):
    started = [FakeWorker() for _ in range(number)]
    for worker in started:
        await worker.start()
    try:
        yield started
    finally:
        for worker in started:
            worker.go_on.set()
            await worker.stop()


@asynccontextmanager
async def executor_of(*addresses):
    executor = GrpcExecutor(make_config(), addresses, "scheduler", 1)
    try:
        yield executor
    finally:
        await executor.close()


async def ready(executor):
    await executor.initialize()
    await executor.allocate_kv_cache(PLAN)


async def run_step(executor, output):
    await executor.send(output)
    return await executor.receive()


async def wait_lost(executor):
    lost = asyncio.Event()
    executor.on_lost = lost.set
    if executor.lost_reason is None:
        async with asyncio.timeout(10):
            await lost.wait()


async def test_a_workers_heartbeats_tell_of_its_process_and_the_round_trip(monkeypatch):
    heard, take = asyncio.Event(), Pulse.take

    async def beat_at_once(send):
        await send()
        await asyncio.Event().wait()

    def take_and_tell(pulse, beat):
        take(pulse, beat)
        heard.set()

    monkeypatch.setattr(execute_stream, "send_heartbeats", beat_at_once)
    monkeypatch.setattr(Pulse, "take", take_and_tell)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        worker.process = common_pb2.ProcessFigures(rss_bytes=7)
        assert executor.pulses() == ()
        await ready(executor)
        await heard.wait()
        (pulse,) = executor.pulses()
        await executor.close()
        assert executor.pulses() == (), "a worker that was given back tells nothing"
    assert (pulse.address, pulse.rank, pulse.process.rss_bytes) == (worker.address, 0, 7)
    assert pulse.round_trip_ns > 0


async def test_a_worker_tells_what_it_found():
    async with workers() as (worker,), executor_of(worker.address) as executor:
        facts = await executor.initialize()
    assert (facts.vocab_size, facts.available_kv_cache_bytes, facts.bytes_per_block) == (
        1000,
        6400,
        64,
    )
    assert facts.eos_token_ids == {999}


async def test_steps_run_and_outputs_are_the_models():
    scheduler = make_scheduler(eos_token_ids=frozenset())
    requests = [add(scheduler, length, max_tokens=7) for length in (3, 9, 20)]
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        while scheduler.has_work:
            output = scheduler.schedule(0.0)
            scheduler.update_from_output(output, await run_step(executor, output))
    for request in requests:
        assert request.output_token_ids == expected_output(request.core_request.prompt_token_ids, 7)
    assert worker.was_closed


async def test_a_crowded_pool_works_over_the_wire_too():
    scheduler = make_scheduler(num_blocks=19, max_model_len=64, eos_token_ids=frozenset())
    requests = [add(scheduler, length, max_tokens=20) for length in range(5, 25)]
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        while scheduler.has_work:
            output = scheduler.schedule(0.0)
            scheduler.update_from_output(output, await run_step(executor, output))
    assert scheduler.make_stats().num_preemptions > 0
    for request in requests:
        expected = expected_output(request.core_request.prompt_token_ids, 20)
        assert request.output_token_ids == expected


async def test_a_row_that_failed_is_reported_by_row():
    scheduler = make_scheduler()
    add(scheduler, 5, request_id="good")
    add(scheduler, 5, request_id="bad")
    async with workers() as (worker,), executor_of(worker.address) as executor:
        worker.failing_request_ids = {"bad"}
        await ready(executor)
        result = await run_step(executor, scheduler.schedule(0.0))
    assert result.errors == {1: RowError("NAN_LOGITS", "no number")}
    assert [len(token_ids) for token_ids in result.sampled_token_ids] == [1, 0]


async def test_a_failed_step_is_told_apart_from_a_lost_worker():
    scheduler = make_scheduler()
    add(scheduler, 5)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        worker.fail_next_steps = 1
        await ready(executor)
        with pytest.raises(StepFailedError, match="on purpose"):
            await run_step(executor, scheduler.schedule(0.0))
        assert executor.lost_reason is None


async def test_a_worker_that_dies_in_a_step_is_lost():
    scheduler = make_scheduler()
    add(scheduler, 5)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        worker.go_on.clear()
        step = asyncio.create_task(run_step(executor, scheduler.schedule(0.0)))
        async with asyncio.timeout(10):
            await worker.got_step.wait()
        await worker.stop()
        with pytest.raises(WorkerLostError):
            await step
        with pytest.raises(WorkerLostError):
            await run_step(executor, scheduler.schedule(0.0))


async def test_two_steps_in_flight_are_answered_in_order():
    scheduler = make_scheduler(eos_token_ids=frozenset())
    request = add(scheduler, 5, max_tokens=6)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        in_flight = deque()
        while scheduler.has_work or in_flight:
            while len(in_flight) < 2 and not (output := scheduler.schedule(0.0)).is_empty:
                await executor.send(output)
                in_flight.append(output)
            result = await executor.receive()
            scheduler.update_from_output(in_flight.popleft(), result)
    assert request.output_token_ids == expected_output(request.core_request.prompt_token_ids, 6)


async def test_a_worker_that_dies_with_two_steps_in_flight_loses_both():
    scheduler = make_scheduler()
    add(scheduler, 5)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        worker.go_on.clear()
        for _ in range(2):
            await executor.send(scheduler.schedule(0.0))
        await worker.stop()
        for _ in range(2):
            with pytest.raises(WorkerLostError):
                await executor.receive()


async def test_an_answer_that_came_before_the_worker_died_is_received():
    scheduler = make_scheduler()
    add(scheduler, 5)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        await executor.send(scheduler.schedule(0.0))
        async with asyncio.timeout(10):
            await asyncio.wait((executor._claim.stream._sent[0].answer,))
        worker.go_on.clear()
        await executor.send(scheduler.schedule(0.0))
        await worker.stop()
        await wait_lost(executor)
        result = await executor.receive()
        with pytest.raises(WorkerLostError):
            await executor.receive()
    assert [len(token_ids) for token_ids in result.sampled_token_ids] == [1]


async def test_a_worker_that_dies_while_idle_is_lost():
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        assert executor.lost_reason is None
        await worker.stop()
        await wait_lost(executor)
        assert executor.lost_reason is not None


async def test_a_silent_worker_is_lost(monkeypatch):
    monkeypatch.setattr(execute_stream, "HEARTBEAT_TIMEOUT_S", 0.2)
    scheduler = make_scheduler()
    add(scheduler, 5)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        worker.is_silent = True
        with pytest.raises(WorkerLostError, match="silent"):
            await run_step(executor, scheduler.schedule(0.0))


async def test_a_worker_that_falls_silent_while_it_loads_is_lost(monkeypatch):
    monkeypatch.setattr(worker_claim, "HEARTBEAT_INTERVAL_S", 0.1)
    monkeypatch.setattr(worker_claim, "HEARTBEAT_TIMEOUT_S", 0.2)
    async with workers() as (worker,), executor_of(worker.address) as executor:
        worker.is_silent = True
        with pytest.raises(WorkerUnavailableError, match="silent while it was claimed"):
            await executor.initialize()


async def test_a_worker_can_be_claimed_again_after_it_came_back():
    async with workers() as (worker,), executor_of(worker.address) as executor:
        await ready(executor)
        await worker.stop()
        await wait_lost(executor)
        await worker.start()
        await ready(executor)
        assert executor.lost_reason is None
        assert worker.num_initialized == 2


async def test_a_standby_is_taken_when_the_first_worker_is_busy():
    async with workers(2) as (first, second):
        addresses = (first.address, second.address)
        async with executor_of(*addresses) as one, executor_of(*addresses) as two:
            await ready(one)
            await ready(two)
            assert (first.num_initialized, second.num_initialized) == (1, 1)


async def test_a_held_worker_is_worth_another_try():
    async with workers() as (worker,), executor_of(worker.address) as one:
        await ready(one)
        async with executor_of(worker.address) as two:
            with pytest.raises(WorkerUnavailableError, match="FAILED_PRECONDITION"):
                await two.initialize()


async def test_an_absent_worker_is_worth_another_try(monkeypatch):
    monkeypatch.setattr(worker_claim, "CONNECT_TIMEOUT_S", 0.1)
    async with executor_of("127.0.0.1:1") as executor:
        with pytest.raises(WorkerUnavailableError, match="nobody answers"):
            await executor.initialize()


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidRequestError("no such model"),
        FailedPreconditionError("too little memory", reason="NO_MEMORY"),
    ],
    ids=["invalid", "memory"],
)
async def test_a_refused_configuration_is_passed_on(refusal):
    async with workers() as (worker,), executor_of(worker.address) as executor:
        worker.refusal = refusal
        with pytest.raises(type(refusal), match=refusal.message):
            await executor.initialize()
