"""A worker that sleeps: for its scheduler, for an administrator, and what the next one finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagewire.engine_config import EngineConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import PagewireError, from_rpc_error
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from tests.worker_svc.harness import (
    MODEL_INFO,
    WAIT_S,
    Scheduler,
    ScriptedRunner,
    Stream,
    connected,
    new_request,
    running_worker,
    sim_config,
    write_model,
)
from worker_svc.server import WorkerServer

PROMPT = [11, 12, 13, 14, 15]


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return sim_config(write_model(tmp_path))


async def sleep(scheduler: Scheduler, level: int) -> None:
    request = worker_pb2.WorkerServiceSleepRequest(lease=scheduler.lease, level=level)
    await scheduler.stub.Sleep(request, timeout=WAIT_S)


async def wake_up(scheduler: Scheduler, *tags: str) -> bool:
    request = worker_pb2.WorkerServiceWakeUpRequest(lease=scheduler.lease, tags=tags)
    response = await scheduler.stub.WakeUp(request, timeout=WAIT_S)
    return response.is_sleeping


async def state(scheduler: Scheduler) -> str:
    name = worker_pb2.WorkerState.Name((await scheduler.status()).state)
    return name.removeprefix("WORKER_STATE_")


async def failure(call: Awaitable[Any]) -> PagewireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def first_token(stream: Stream, handle: int) -> int:
    """The token after `PROMPT`; the worker has forgotten the request afterwards."""
    await stream.send_step(
        new_requests=[new_request(handle, PROMPT, [1, 2])],
        handles=[handle],
        num_scheduled_tokens=[len(PROMPT)],
        new_block_counts=[0],
    )
    output = await stream.read("output")
    await stream.send_step(finished_handles=[handle])
    await stream.read("output")
    token_id: int = output.sampled_token_ids[0]
    return token_id


@asynccontextmanager
async def scripted(config: EngineConfig) -> AsyncIterator[tuple[ScriptedRunner, Scheduler]]:
    """A worker whose runner the test scripts, ready for steps, its Execute stream open."""
    runner = ScriptedRunner()
    async with running_worker(lambda config: runner) as server, connected(server) as scheduler:
        await scheduler.open(config)
        yield runner, scheduler


@pytest.mark.parametrize("level", [1, 2])
async def test_tokens_after_a_sleep_are_those_before_it(config: EngineConfig, level: int) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        before = await first_token(stream, 1)
        await sleep(scheduler, level)
        assert await state(scheduler) == "SLEEPING"
        assert not await wake_up(scheduler)
        assert await state(scheduler) == "READY"
        assert await first_token(stream, 2) == before


async def test_a_step_while_it_sleeps_fails_alone(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await sleep(scheduler, 1)
        await stream.send_step(
            new_requests=[new_request(1, PROMPT, [1, 2])],
            handles=[1],
            num_scheduled_tokens=[len(PROMPT)],
            new_block_counts=[0],
        )
        assert (await stream.read("failed")).step == 1
        await wake_up(scheduler)
        await first_token(stream, 2)


async def test_a_deeper_sleep_frees_more_and_a_lighter_one_nothing(config: EngineConfig) -> None:
    async with scripted(config) as (runner, scheduler):
        for level in (1, 1, 2, 1):
            await sleep(scheduler, level)
        assert runner.sleeps == [1, 2]


async def test_parts_wake_one_by_one(config: EngineConfig) -> None:
    async with scripted(config) as (runner, scheduler):
        await sleep(scheduler, 2)
        error = await failure(wake_up(scheduler, "kv_cache"))
        assert error.reason == "WEIGHTS_SLEEP"
        assert await wake_up(scheduler, "weights")
        assert runner.num_wakes == 1
        assert await wake_up(scheduler, "weights")
        assert await state(scheduler) == "SLEEPING"
        assert not await wake_up(scheduler, "kv_cache")
        assert runner.num_wakes == 1
        assert not await wake_up(scheduler)


async def test_weights_that_cannot_be_loaded_go_on_sleeping(config: EngineConfig) -> None:
    async with scripted(config) as (runner, scheduler):
        await sleep(scheduler, 2)
        runner.load_error = ValueError("the file is gone")
        error = await failure(wake_up(scheduler))
        assert (error.reason, "the file is gone" in error.message) == ("MODEL_LOAD_FAILED", True)
        assert await state(scheduler) == "SLEEPING"
        runner.load_error = None
        assert not await wake_up(scheduler)


async def test_other_weights_than_before_are_dropped(config: EngineConfig) -> None:
    async with scripted(config) as (runner, scheduler):
        await sleep(scheduler, 2)
        runner.woken_info = replace(MODEL_INFO, weights_digest="other")
        assert (await failure(wake_up(scheduler))).reason == "WEIGHTS_CHANGED"
        assert runner.sleeps == [2, 2]
        assert await state(scheduler) == "SLEEPING"


async def test_a_worker_with_a_request_does_not_sleep(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send_step(
            new_requests=[new_request(1, PROMPT, [1, 2])],
            handles=[1],
            num_scheduled_tokens=[len(PROMPT)],
            new_block_counts=[0],
        )
        await stream.read("output")
        assert (await failure(sleep(scheduler, 1))).reason == "NOT_IDLE"
        assert await state(scheduler) == "READY"


@pytest.mark.parametrize("level", [0, 3])
async def test_levels_that_there_are_not(config: EngineConfig, level: int) -> None:
    async with scripted(config) as (runner, scheduler):
        assert (await failure(sleep(scheduler, level))).field == "level"
        assert runner.sleeps == []


async def test_tags_that_there_are_not(config: EngineConfig) -> None:
    async with scripted(config) as (_, scheduler):
        await sleep(scheduler, 1)
        assert (await failure(wake_up(scheduler, "weight"))).field == "tags"
        assert await state(scheduler) == "SLEEPING"


async def test_only_the_holder_of_the_lease_may_ask(config: EngineConfig) -> None:
    async with scripted(config) as (runner, scheduler):
        scheduler.lease.token += 1
        assert (await failure(sleep(scheduler, 1))).reason == "LEASE_LOST"
        assert (await failure(wake_up(scheduler))).reason == "LEASE_LOST"
        assert runner.sleeps == []


async def test_a_blank_worker_has_nothing_to_wake(config: EngineConfig) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda config: runner) as server, connected(server) as scheduler:
        await scheduler.initialize(config)
        assert (await failure(sleep(scheduler, 1))).reason == "WRONG_ORDER"
        assert (await failure(wake_up(scheduler))).reason == "WRONG_ORDER"


@pytest.mark.parametrize(("level", "num_loads", "num_wakes"), [(1, 1, 1), (2, 2, 0)])
async def test_the_next_scheduler_finds_a_worker_that_is_awake(
    config: EngineConfig, level: int, num_loads: int, num_wakes: int
) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda config: runner) as server:
        async with connected(server) as scheduler:
            stream = await scheduler.open(config)
            await sleep(scheduler, level)
            await stream.send(close=worker_pb2.ExecuteClose())
            assert await stream.end() is grpc.StatusCode.OK
        async with connected(server, "s2") as other:
            result = await other.initialize(config)
            assert result.reused_weights == (level == 1)
            assert await state(other) == "LOADED"
    assert (runner.num_loads, runner.num_wakes) == (num_loads, num_wakes)


@asynccontextmanager
async def administrator(
    server: WorkerServer,
) -> AsyncIterator[worker_pb2_grpc.WorkerAdminServiceAsyncStub]:
    assert server.server.admin_address is not None
    async with open_channel(server.server.admin_address) as channel:
        yield worker_pb2_grpc.WorkerAdminServiceStub(channel)


async def test_an_administrator_frees_weights_that_nobody_uses(config: EngineConfig) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda config: runner) as server, administrator(server) as admin:
        sleep_request = worker_pb2.WorkerAdminServiceSleepRequest(level=2)
        await admin.Sleep(sleep_request, timeout=WAIT_S)  # a blank one has nothing to free
        async with connected(server) as scheduler:
            stream = await scheduler.open(config)
            error = await failure(admin.Sleep(sleep_request, timeout=WAIT_S))
            assert (error.reason, error.metadata["holder"]) == ("LEASE_HELD", "s1")
            await stream.send(close=worker_pb2.ExecuteClose())
            await stream.end()
            await wait_free(scheduler)
            await admin.Sleep(sleep_request, timeout=WAIT_S)
            assert (runner.sleeps, await state(scheduler)) == ([2], "SLEEPING")
            wake_request = worker_pb2.WorkerAdminServiceWakeUpRequest()
            await admin.WakeUp(wake_request, timeout=WAIT_S)
            assert runner.num_wakes == 1


async def wait_free(scheduler: Scheduler) -> None:
    """Until the lease has ended, which happens behind the end of the stream."""
    while (await scheduler.status()).lease_holder:
        continue
