import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pagewire.engine_config import ParallelConfig
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.tasks import cancel_and_wait
from scheduler_svc import worker_claim
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.executor import KvCachePlan, WorkerLostError, WorkerUnavailableError
from scheduler_svc.worker_group import GroupExecutor
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.factories import EOS, add, make_core_request, make_scheduler
from tests.scheduler_svc.fakes import FakeClient, make_config
from tests.scheduler_svc.sim_model import expected_output
from tests.scheduler_svc.test_worker_client import wait_lost, workers

PLAN = KvCachePlan(num_blocks=101, block_size=4, max_model_len=64)


def config_of(tp_size: int = 2, pp_size: int = 1):
    sizes = ParallelConfig(tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size)
    return replace(make_config(), parallel=sizes)


@asynccontextmanager
async def group_of(started: list[FakeWorker], tp_size: int = 2, pp_size: int = 1):
    addresses = [worker.address for worker in started]
    executor = GroupExecutor(config_of(tp_size, pp_size), addresses, "scheduler", 1)
    try:
        yield executor
    finally:
        await executor.close()


async def ready(executor):
    await executor.initialize()
    await executor.allocate_kv_cache(PLAN)


def seats(started: list[FakeWorker]):
    return [(w.seats[-1].rank, w.seats[-1].world_size, w.seats[-1].rendezvous) for w in started]


async def test_ranks_are_claimed_in_the_order_of_addresses_and_meet_at_rank_0():
    async with workers(4) as started, group_of(started, tp_size=3) as executor:
        await ready(executor)
        assert seats(started[:3]) == [(0, 3, ""), (1, 3, "host:1/key1"), (2, 3, "host:1/key1")]
        assert started[3].num_initialized == 0
        digests = {worker.seats[-1].config_digest for worker in started[:3]}
        assert digests == {config_of(3).digest()}


async def test_a_worker_of_another_scheduler_is_passed_over():
    async with workers(3) as started, group_of(started) as executor:
        started[1].holder = "somebody"
        await ready(executor)
        assert [worker.num_initialized for worker in started] == [1, 0, 1]
        assert seats([started[0], started[2]]) == [(0, 2, ""), (1, 2, "host:1/key1")]


async def test_one_worker_with_two_addresses_is_one_rank():
    async with workers(3) as started:
        for number, worker in enumerate(started[:2], 7):
            worker.worker_epoch = number
        first, second, third = (worker.address for worker in started)
        addresses = [first, first.replace("127.0.0.1", "localhost"), second]
        executor = GroupExecutor(config_of(3), addresses, "scheduler", 1)
        with pytest.raises(WorkerUnavailableError, match="3 workers are needed, 2 of 2 are free"):
            await executor.initialize()
        assert [worker.num_initialized for worker in started] == [0, 0, 0]
        executor = GroupExecutor(config_of(3), [*addresses, third], "scheduler", 1)
        try:
            await ready(executor)
            assert [rank for rank, _, _ in seats(started)] == [0, 1, 2]
            assert [worker.num_initialized for worker in started] == [1, 1, 1]
        finally:
            await executor.close()


async def test_too_few_free_workers_are_named_and_none_is_claimed(monkeypatch):
    monkeypatch.setattr(worker_claim, "CONNECT_TIMEOUT_S", 0.1)
    async with workers(3) as started, group_of(started, tp_size=3) as executor:
        started[1].holder = "somebody"
        await started[2].stop()
        with pytest.raises(WorkerUnavailableError) as raised:
            await executor.initialize()
        assert "3 workers are needed, 1 of 3 are free" in str(raised.value)
        assert "it serves scheduler somebody" in str(raised.value)
        assert "nobody answers there" in str(raised.value)
        assert [worker.num_initialized for worker in started] == [0, 0, 0]


async def test_what_one_rank_refuses_is_raised():
    async with workers(2) as started, group_of(started) as executor:
        started[1].refusal = InvalidRequestError("no such size")
        with pytest.raises(InvalidRequestError, match="no such size"):
            await executor.initialize()


async def test_the_group_has_the_room_of_its_smallest_rank():
    async with workers(2) as started, group_of(started) as executor:
        started[1].num_blocks = 7
        facts = await executor.initialize()
        assert (facts.available_kv_cache_bytes, facts.bytes_per_block) == (7 * 64, 64)


@pytest.mark.parametrize(("tp_size", "pp_size", "output_rank"), [(2, 1, 0), (1, 2, 1), (2, 2, 2)])
async def test_every_rank_gets_each_step_and_one_gives_the_tokens(tp_size, pp_size, output_rank):
    scheduler = make_scheduler(eos_token_ids=frozenset())
    requests = [add(scheduler, length, max_tokens=5) for length in (3, 9)]
    world_size = tp_size * pp_size
    async with workers(world_size) as started, group_of(started, tp_size, pp_size) as executor:
        for rank, worker in enumerate(started):
            worker.token_offset = 0 if rank == output_rank else 1
        await ready(executor)
        while scheduler.has_requests:
            output = scheduler.schedule(0.0)
            await executor.send(output)
            scheduler.update_from_output(output, await executor.receive())
        assert {len(worker.steps) for worker in started} == {len(started[0].steps)}
        assert all(worker.steps == started[0].steps for worker in started)
    for request in requests:
        prompt = request.core_request.prompt_token_ids
        assert request.output_token_ids == expected_output(prompt, 5)


@pytest.mark.parametrize("fault", ["gone", "failed step"])
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_fault_of_one_rank_ends_the_group(fault, rank):
    scheduler = make_scheduler()
    add(scheduler, 3)
    async with workers(2) as started, group_of(started) as executor:
        await ready(executor)
        assert executor.lost_reason is None
        output = scheduler.schedule(0.0)
        if fault == "failed step":
            started[rank].fail_next_steps = 1
            await executor.send(output)
        else:
            # The other rank would wait for it in the middle of the step.
            for worker in started:
                worker.go_on.clear()
            await executor.send(output)
            for worker in started:
                await worker.got_step.wait()
            await started[rank].stop()
        with pytest.raises(WorkerLostError):
            await executor.receive()
        assert executor.lost_reason is not None
        with pytest.raises(WorkerLostError):
            await executor.send(output)


async def test_a_rank_that_goes_while_nothing_runs_is_noticed():
    async with workers(2) as started, group_of(started) as executor:
        await ready(executor)
        await started[1].stop()
        await wait_lost(executor)
        assert executor.lost_reason.startswith(f"rank 1 ({started[1].address}): ")


async def test_the_next_group_is_another_generation():
    async with workers(3) as started, group_of(started) as executor:
        await ready(executor)
        await started[0].stop()
        await wait_lost(executor)
        await ready(executor)
        # The standby moved up, and rank 0 has another place to meet.
        assert seats(started[1:]) == [(0, 2, ""), (1, 2, "host:1/key2")]
        assert [worker.generations for worker in started] == [[1], [1, 2], [2]]


async def test_the_engine_goes_on_with_the_tokens_of_before():
    async with workers(3) as started, group_of(started) as executor:
        engine = EngineCore(config_of(), executor)
        client = FakeClient()
        request = make_core_request(9, max_tokens=20, client_id=engine.attach(client))
        running = asyncio.create_task(engine.run())
        try:
            await engine_ready(engine)
            started[1].go_on.clear()
            engine.add_request(request)
            await started[1].got_step.wait()
            await started[1].stop()
            await client.wait_finished(request.request_id)
        finally:
            await cancel_and_wait(running)
        expected = expected_output(request.prompt_token_ids, 20, frozenset({EOS}))
        assert client.token_ids[request.request_id] == expected
        assert engine.counters.num_workers_lost == 1
        assert started[2].generations == [2]


async def engine_ready(engine):
    ready_now = asyncio.Event()
    engine.on_state = lambda state: ready_now.set() if state is EngineState.READY else None
    if engine.state is not EngineState.READY:
        async with asyncio.timeout(10):
            await ready_now.wait()
