"""The worker over real gRPC, with the simulated runner or one that the test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pagewire.engine_config import EngineConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import PagewireError, from_rpc_error
from pagewire.sampling_params import SamplingParams
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from pagewire.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tests.worker_svc.harness import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    VOCABULARY,
    WAIT_S,
    Scheduler,
    ScriptedRunner,
    Stream,
    connected,
    eventually,
    new_request,
    running_worker,
    sim_config,
    write_model,
)
from worker_svc.server import WorkerServer
from worker_svc.sim.oracle import expected_tokens

PROMPT = list(range(300, 311))
GREEDY = SamplingParams(temperature=0.0)
LOAD_S = 120.0
"""For what imports PyTorch."""


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return sim_config(write_model(tmp_path))


async def failure(call: Any) -> PagewireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


def is_file(path: str) -> bool:
    return Path(path).is_file()


async def is_free(scheduler: Scheduler) -> bool:
    return (await scheduler.status()).lease_holder == ""


async def test_initialize_tells_what_the_model_is(config: EngineConfig, tmp_path: Path) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        result = await scheduler.initialize(config)
    assert result.lease.scheduler_id == "s1" and result.lease.token
    assert result.model_info.vocab_size == VOCAB_SIZE
    assert list(result.model_info.eos_token_ids) == [EOS_TOKEN_ID]
    assert result.model_info.tokenizer_fingerprint == fingerprint_of_model(tmp_path)
    assert result.available_kv_cache_bytes == 2**20
    assert result.bytes_per_block == 4 * 2 * 2 * 2 * 8 * 2
    assert (result.device, result.reused_weights) == ("sim", False)
    assert [event.WhichOneof("event") for event in scheduler.events[:-1]].count("progress") >= 1


async def test_initializing_again_reuses_the_weights(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        first = await scheduler.initialize(config)
        second = await scheduler.initialize(config)
    assert second.reused_weights
    assert second.worker_epoch == first.worker_epoch
    assert second.lease.token != first.lease.token


async def test_a_configuration_that_is_refused_names_the_field(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        request = scheduler.initialize_request(config)
        request.engine_config.cache.block_size = 0
        error = await failure(anext(aiter(scheduler.stub.Initialize(request))))
    assert error.reason == "INVALID_CONFIG"
    assert "block_size" in error.message


async def test_steps_give_the_oracles_tokens_in_order(config: EngineConfig) -> None:
    params = SamplingParams(temperature=1.0, seed=3)
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        new = [new_request(4, PROMPT, [3, 9, 5, 6], params)]
        await stream.send_step(new_requests=new, handles=[4], num_scheduled_tokens=[11])
        for _ in range(4):  # sent before the answers are read
            await stream.send_step(handles=[4], num_scheduled_tokens=[1])
        outputs = [await stream.read("output") for _ in range(5)]
    assert [output.step for output in outputs] == [1, 2, 3, 4, 5]
    tokens = [token_id for output in outputs for token_id in output.sampled_token_ids]
    assert tokens == expected_tokens(PROMPT, params, 5, VOCABULARY)


async def test_answers_are_numbered_and_carry_timings(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        await scheduler.initialize(config)
        await scheduler.allocate()
        stream = Stream(scheduler)
        await stream.send(open=worker_pb2.ExecuteOpen(group_generation=1))
        new = [new_request(1, PROMPT, [1, 2, 3])]
        await stream.send_step(new_requests=new, handles=[1], num_scheduled_tokens=[11])
        accepted, output = await stream.call.read(), await stream.call.read()
    assert isinstance(accepted, worker_pb2.ExecuteResponse)
    assert isinstance(output, worker_pb2.ExecuteResponse)
    assert (accepted.frame, output.frame) == (1, 2)
    assert output.output.timings.idle_ns > 0
    assert output.output.timings.forward_ns > 0


async def test_logprobs_come_in_their_columns(config: EngineConfig) -> None:
    params = replace(GREEDY, logprobs=2)
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        new = [new_request(1, PROMPT, [1, 2, 3]), new_request(2, PROMPT, [4, 5, 6], params)]
        await stream.send_step(new_requests=new, handles=[1, 2], num_scheduled_tokens=[11, 11])
        output = await stream.read("output")
    assert list(output.logprob_handles) == [2]
    assert list(output.logprobs.top_counts) == [2]
    assert len(output.logprobs.logprobs) == len(output.logprobs.ranks) == 1
    assert len(output.logprobs.top_token_ids) == len(output.logprobs.top_logprobs) == 2


async def test_status_counts_the_requests_of_the_stream(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        new = [new_request(1, PROMPT, [1, 2, 3])]
        await stream.send_step(new_requests=new, handles=[1], num_scheduled_tokens=[11])
        await stream.read("output")
        assert (await scheduler.status()).num_requests == 1
        await stream.send_step(finished_handles=[1])
        await stream.read("output")
        assert (await scheduler.status()).num_requests == 0


async def test_a_close_answers_every_step_and_frees_the_worker(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send_step()
        await stream.send_step()
        await stream.send(close=worker_pb2.ExecuteClose())
        assert [(await stream.read("output")).step for _ in range(2)] == [1, 2]
        assert await stream.end() is grpc.StatusCode.OK
        await eventually(lambda: is_free(scheduler))


async def test_while_the_stream_lives_another_scheduler_is_refused(config: EngineConfig) -> None:
    async with (
        running_worker() as server,
        connected(server) as holder,
        connected(server, "s2") as other,
    ):
        await holder.open(config)
        error = await failure(other.initialize(config))
    assert error.code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.metadata == {"holder": "s1"}


async def test_a_lost_stream_frees_the_worker(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server, "s2") as other:
        async with connected(server) as holder:
            stream = await holder.open(config)
            stream.call.cancel()
            await eventually(lambda: is_free(holder))
        assert (await other.initialize(config)).reused_weights


async def test_an_end_without_a_close_frees_the_worker(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.call.done_writing()
        assert await stream.end() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: is_free(scheduler))


async def test_a_silent_scheduler_loses_the_worker(config: EngineConfig) -> None:
    async with running_worker(lease_timeout_s=0.5) as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        assert await stream.end() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: is_free(scheduler))


async def test_heartbeats_are_frames_like_others(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send(heartbeat=common_pb2.Heartbeat(sequence=1))
        await stream.send_step()
        assert (await stream.read("output")).step == 1


async def test_a_holder_that_comes_again_ends_its_old_stream(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        old = await scheduler.open(config)
        new = await scheduler.open(config)
        assert await old.end() is grpc.StatusCode.UNAVAILABLE
        await new.send_step()
        assert (await new.read("output")).step == 1


async def test_a_malformed_step_fails_and_the_stream_goes_on(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send_step(handles=[99], num_scheduled_tokens=[1])
        failed = await stream.read("failed")
        assert (failed.step, failed.reason) == (1, "INVALID_STEP")
        await stream.send_step()
        assert (await stream.read("output")).step == 2


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            {"new_requests": [new_request(1, PROMPT, [1, 2, 3], lora_digest="x")]},
            "LORA_NOT_SUPPORTED",
        ),
        (
            {
                "new_requests": [
                    worker_pb2.NewRequestData(
                        prompt_token_ids=[1],
                        sampling_params=common_pb2.SamplingParams(temperature=-1),
                    )
                ]
            },
            "INVALID_PARAMETER",
        ),
    ],
)
async def test_a_step_that_cannot_be_read_fails_in_its_place(
    config: EngineConfig, columns: dict[str, Any], reason: str
) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send_step()
        await stream.send_step(**columns)
        await stream.send_step()
        assert (await stream.read("output")).step == 1
        failed = await stream.read("failed")
        assert (failed.step, failed.reason) == (2, reason)
        assert (await stream.read("output")).step == 3


async def test_a_step_that_raises_fails_alone(config: EngineConfig) -> None:
    runner = ScriptedRunner()
    runner.step_error = RuntimeError("secret")
    async with running_worker(lambda _: runner) as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        new = [new_request(1, PROMPT, [1, 2, 3])]
        await stream.send_step(new_requests=new, handles=[1], num_scheduled_tokens=[11])
        failed = await stream.read("failed")
        assert failed.reason == "STEP_RAISED"
        assert "secret" not in failed.message
        runner.step_error = None
        await stream.send_step(new_requests=new, handles=[1], num_scheduled_tokens=[11])
        assert list((await stream.read("output")).sampled_counts) == [1]


async def broken(stream: Stream, **changes: Any) -> grpc.StatusCode:
    """Send a frame that is a heartbeat but for `changes`, and see how the stream ends."""
    frame = worker_pb2.ExecuteRequest(
        frame=stream.frame + 1, lease=stream.lease, heartbeat=common_pb2.Heartbeat(sequence=1)
    )
    for name, value in changes.items():
        if isinstance(value, int):
            setattr(frame, name, value)
        else:
            getattr(frame, name).CopyFrom(value)
    await stream.call.write(frame)
    return await stream.end()


@pytest.mark.parametrize(
    "changes",
    [
        {"frame": 9},
        {"lease": worker_pb2.Lease(scheduler_id="s1", epoch=1, token=1)},
        {"open": worker_pb2.ExecuteOpen(group_generation=1)},
        {"step": worker_pb2.SchedulerOutput(step=2)},
    ],
    ids=["frame number", "lease", "second open", "step number"],
)
async def test_a_frame_against_the_protocol_ends_the_stream(
    config: EngineConfig, changes: dict[str, Any]
) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        assert await broken(stream, **changes) is grpc.StatusCode.INVALID_ARGUMENT
        await eventually(lambda: is_free(scheduler))


async def test_a_frame_without_payload_ends_the_stream(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await stream.send()
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_begins_with_open(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        await scheduler.initialize(config)
        await scheduler.allocate()
        stream = Stream(scheduler)
        await stream.send_step()
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_that_never_opens_ends(config: EngineConfig) -> None:
    async with running_worker(lease_timeout_s=0.2) as server, connected(server) as scheduler:
        stream = Stream(scheduler)
        assert await stream.end() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stream_needs_the_current_lease(config: EngineConfig) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        await scheduler.initialize(config)
        await scheduler.allocate()
        stream = Stream(scheduler)
        stream.lease = worker_pb2.Lease(scheduler_id="s1", epoch=1, token=1)
        await stream.send(open=worker_pb2.ExecuteOpen(group_generation=1))
        assert await stream.end() is grpc.StatusCode.FAILED_PRECONDITION


async def test_too_many_steps_in_flight_end_the_stream(config: EngineConfig) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda _: runner) as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        runner.may_step.clear()
        await stream.send_step()
        assert await asyncio.to_thread(runner.stepping.wait, WAIT_S)
        for _ in range(16):
            await stream.send_step()
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT
        runner.may_step.set()
        await eventually(lambda: is_free(scheduler))
    assert len(runner.steps) == 1


async def test_stopping_answers_the_step_in_flight_and_drops_the_next(config: EngineConfig) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda _: runner) as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        runner.may_step.clear()
        await stream.send_step()
        await stream.send_step()
        assert await asyncio.to_thread(runner.stepping.wait, WAIT_S)

        async def let_it_go_on() -> None:
            runner.may_step.set()

        stopping = asyncio.gather(server.stop(), let_it_go_on())
        assert (await stream.read("output")).step == 1
        assert await stream.end() is grpc.StatusCode.UNAVAILABLE
        await stopping


@pytest.mark.parametrize(
    ("name", "request_type"),
    [
        ("LoadLora", worker_pb2.WorkerServiceLoadLoraRequest),
        ("UnloadLora", worker_pb2.WorkerServiceUnloadLoraRequest),
    ],
)
async def test_adapters_are_not_served_yet(name: str, request_type: Any) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        error = await failure(getattr(scheduler.stub, name)(request_type()))
    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert name in error.message


async def test_profiles_are_started_and_awaited(config: EngineConfig, tmp_path: Path) -> None:
    config = replace(config, device=replace(config.device, device="cpu"))
    start, wait = worker_pb2.StartProfileRequest, worker_pb2.StopProfileRequest(wait=True)
    runner = ScriptedRunner()
    async with (
        running_worker(lambda _: runner, profiler_dir=tmp_path / "traces") as server,
        connected(server) as scheduler,
        administrator(server) as admin,
    ):
        await scheduler.initialize(config)
        # The first one brings PyTorch, if nothing has: no stream waits for it here.
        timed = await admin.StartProfile(start(max_seconds=1), timeout=LOAD_S)
        without_steps = await admin.StopProfile(wait, timeout=LOAD_S)
        stream = await scheduler.open(config)
        counted = await admin.StartProfile(start(max_steps=1, name="mine"), timeout=WAIT_S)
        await stream.send_step()
        await stream.read("output")
        with_step = await admin.StopProfile(wait, timeout=WAIT_S)
    assert (timed.max_steps, timed.max_seconds) == (1000, 1)
    assert (counted.max_steps, counted.max_seconds) == (1, 300)
    assert (without_steps.path, without_steps.num_steps) == (timed.path, 0)
    assert (with_step.path, with_step.num_steps) == (counted.path, 1)
    assert with_step.duration_ns > 0
    steps = {operator.name: operator.calls for operator in with_step.operators}
    assert steps["step"] == 1
    assert is_file(counted.path) and "/mine-" in counted.path


async def test_a_profile_is_refused_where_there_is_none(config: EngineConfig) -> None:
    async with (
        running_worker() as server,
        connected(server) as scheduler,
        administrator(server) as admin,
    ):
        stop = await failure(admin.StopProfile(worker_pb2.StopProfileRequest(), timeout=WAIT_S))
        await scheduler.initialize(config)
        start = await failure(admin.StartProfile(worker_pb2.StartProfileRequest(), timeout=WAIT_S))
    assert (stop.code, stop.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_PROFILE")
    assert (start.code, start.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_PROFILER_DIR")
    assert "--profiler-dir" in start.message


@asynccontextmanager
async def administrator(
    server: WorkerServer,
) -> AsyncIterator[worker_pb2_grpc.WorkerAdminServiceAsyncStub]:
    address = server.server.admin_address
    assert address is not None
    async with open_channel(address) as channel:
        yield worker_pb2_grpc.WorkerAdminServiceStub(channel)
