"""What reaches the engine through a whole stack: priorities, pauses, KV events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from pagewire.block_hash import hash_block
from pagewire.kit.channels import open_channel
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.stack import Stack, start_stack

PROMPT_TOKEN_IDS = list(range(100, 140))
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack(
        "--device=sim", "--scheduling-policy=priority", "--max-num-seqs=1", "--block-size=16"
    ) as started:
        yield started


@pytest.fixture
async def scheduler(stack: Stack) -> AsyncIterator[scheduler_pb2_grpc.SchedulerServiceAsyncStub]:
    async with open_channel(stack.scheduler_target) as channel:
        yield scheduler_pb2_grpc.SchedulerServiceStub(channel)


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[scheduler_pb2_grpc.EngineAdminServiceAsyncStub]:
    async with open_channel(stack.scheduler_admin_target) as channel:
        yield scheduler_pb2_grpc.EngineAdminServiceStub(channel)


async def complete(stack: Stack, **fields: object) -> None:
    body = {"model": "smollm2", "prompt": PROMPT_TOKEN_IDS, "max_tokens": 8} | fields
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        answer = await client.post(f"{stack.http_url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_waiting_requests_go_in_the_order_of_their_priorities(stack, scheduler, admin):
    mode = scheduler_pb2.PAUSE_MODE_WAIT
    await admin.Pause(scheduler_pb2.PauseRequest(mode=mode), timeout=TIMEOUT_S)
    ended: list[int] = []

    async def run(priority: int) -> None:
        await complete(stack, priority=priority, max_tokens=64)
        ended.append(priority)

    tasks = [asyncio.create_task(run(priority)) for priority in (5, -5, 0)]
    loads = scheduler.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50), timeout=TIMEOUT_S)
    async for load in loads:
        if load.num_requests_waiting == len(tasks):
            break
    assert load.num_requests_running == 0
    await admin.Resume(scheduler_pb2.ResumeRequest(), timeout=TIMEOUT_S)
    await asyncio.gather(*tasks)
    assert ended == [-5, 0, 5]


async def test_kv_events_tell_the_blocks_of_a_prompt_and_a_reset(stack, scheduler, admin):
    await admin.ResetPrefixCache(scheduler_pb2.ResetPrefixCacheRequest(reset_running_requests=True))
    events = scheduler.SubscribeKvEvents(
        scheduler_pb2.SubscribeKvEventsRequest(), timeout=TIMEOUT_S
    )
    await events.initial_metadata()
    await complete(stack)
    first = hash_block(None, PROMPT_TOKEN_IDS[:16])
    second = hash_block(first, PROMPT_TOKEN_IDS[16:32])
    while not (message := await events.read()).stored:
        pass
    (blocks,) = message.stored
    assert list(blocks.hashes) == [first, second]
    assert list(blocks.token_ids) == PROMPT_TOKEN_IDS[:32]
    await admin.ResetPrefixCache(scheduler_pb2.ResetPrefixCacheRequest(reset_running_requests=True))
    while not (await events.read()).all_cleared:
        pass
    events.cancel()
