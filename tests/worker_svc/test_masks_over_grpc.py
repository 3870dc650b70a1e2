"""Masks and drafts over real gRPC, with the simulated runner, and with a scheduler that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from pagewire.engine_config import EngineConfig
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import worker_pb2
from tests.worker_svc.harness import (
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
from tests.worker_svc.runner_factories import bitmask
from worker_svc.grammar_masks import Bitmasks
from worker_svc.sim.oracle import expected_tokens

PROMPT = list(range(300, 311))
PARAMS = SamplingParams(temperature=1.0, seed=3)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return sim_config(write_model(tmp_path))


async def is_free(scheduler: Scheduler) -> bool:
    return (await scheduler.status()).lease_holder == ""


def mask_of(output: Sequence[int]) -> Bitmasks:
    return bitmask(range(len(output) % 7, VOCAB_SIZE, 7), VOCAB_SIZE)


async def send_masks(stream: Stream, step: int, handle: int, outputs: Sequence[list[int]]) -> None:
    rows = [mask_of(output).tobytes() for output in outputs]
    masks = worker_pb2.StepMasks(step=step, handles=[handle] * len(rows), bitmasks=b"".join(rows))
    await stream.send(masks=masks)


async def send_first(stream: Stream) -> None:
    """A masked step that only waits for its masks."""
    await stream.send_step(
        new_requests=[new_request(4, PROMPT, [3, 9, 5, 6, 7, 8], PARAMS)],
        handles=[4],
        num_scheduled_tokens=[11],
        masked_handles=[4],
    )


async def test_masked_steps_with_drafts_give_the_oracles_tokens(config: EngineConfig) -> None:
    expected = expected_tokens(PROMPT, PARAMS, 5, VOCABULARY, mask_of)
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await send_first(stream)
        await send_masks(stream, 1, 4, [[]])
        first = await stream.read("output")
        assert list(first.sampled_token_ids) == expected[:1]
        drafts = [*expected[1:3], 999]
        await stream.send_step(
            handles=[4],
            num_scheduled_tokens=[4],
            draft_counts=[3],
            draft_token_ids=drafts,
            masked_handles=[4],
        )
        outputs = [expected[:1] + drafts[:place] for place in range(4)]
        await send_masks(stream, 2, 4, outputs)
        second = await stream.read("output")
        assert (list(second.sampled_counts), list(second.failed_handles)) == ([3], [])
        assert list(second.sampled_token_ids) == expected[1:4]
        await stream.send_step(handles=[4], num_scheduled_tokens=[1], masked_handles=[4])
        await send_masks(stream, 3, 4, [expected[:4]])
        assert list((await stream.read("output")).sampled_token_ids) == expected[4:]


async def test_masks_that_do_not_fit_fail_the_step_and_the_stream_goes_on(
    config: EngineConfig,
) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await send_first(stream)
        await send_masks(stream, 1, 4, [[], []])
        failed = await stream.read("failed")
        assert (failed.step, failed.reason) == (1, "INVALID_MASKS")
        assert "handle 4 has 2 rows" in failed.message
        await stream.send_step()
        assert (await stream.read("output")).step == 2


@pytest.mark.parametrize(
    "masks",
    [
        worker_pb2.StepMasks(step=7),
        worker_pb2.StepMasks(step=1, handles=[4, 4], bitmasks=b"abc"),
    ],
    ids=["of no step", "that cannot be cut into rows"],
)
async def test_masks_against_the_protocol_end_the_stream(
    config: EngineConfig, masks: worker_pb2.StepMasks
) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await send_first(stream)
        await stream.send(masks=masks)
        assert await stream.end() is grpc.StatusCode.INVALID_ARGUMENT
        await eventually(lambda: is_free(scheduler))


async def test_a_scheduler_that_dies_while_the_device_waits_frees_the_worker(
    config: EngineConfig,
) -> None:
    runner = ScriptedRunner()
    async with (
        running_worker(lambda _: runner) as server,
        connected(server, "s2") as other,
        connected(server) as scheduler,
    ):
        stream = await scheduler.open(config)
        await send_first(stream)
        assert await asyncio.to_thread(runner.stepping.wait, WAIT_S)
        stream.call.cancel()
        await eventually(lambda: is_free(other))
        # The device thread is free again: a reset of the runner goes through it.
        assert (await other.initialize(config)).reused_weights


async def test_a_worker_that_stops_while_the_device_waits_is_not_held_up(
    config: EngineConfig,
) -> None:
    runner = ScriptedRunner()
    async with running_worker(lambda _: runner) as server, connected(server) as scheduler:
        stream = await scheduler.open(config)
        await send_first(stream)
        assert await asyncio.to_thread(runner.stepping.wait, WAIT_S)
        stopping = asyncio.create_task(server.stop())
        failed = await stream.read("failed")
        assert failed.reason == "MASKS_MISSING"
        assert await stream.end() is grpc.StatusCode.UNAVAILABLE
        await stopping
