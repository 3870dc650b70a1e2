"""What must hold when all requests have ended: every scheduler is idle, and no block is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from pagewire.kit.channels import open_channel
from pagewire.v1 import scheduler_pb2_grpc
from pagewire.v1.scheduler_pb2 import WatchLoadRequest, WatchLoadResponse
from tests.chaos.stack import WAIT_TIMEOUT_S, ChaosStack

_RETRY_PAUSE_S = 0.1


async def wait_for_load(
    stack: ChaosStack, scheduler: str, done: Callable[[WatchLoadResponse], bool]
) -> WatchLoadResponse:
    """The first load report that satisfies `done`; a scheduler that is away is waited for."""
    async with asyncio.timeout(WAIT_TIMEOUT_S), open_channel(stack.target(scheduler)) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        while True:
            try:
                async for load in stub.WatchLoad(WatchLoadRequest(interval_ms=50)):
                    if done(load):
                        return load
            except grpc.aio.AioRpcError:
                await asyncio.sleep(_RETRY_PAUSE_S)


async def wait_idle(stack: ChaosStack) -> None:
    """Wait until no scheduler has a request, or a block in use."""
    await asyncio.gather(
        *(wait_for_load(stack, name, _is_idle) for name in stack.layout.names("scheduler"))
    )


def _is_idle(load: WatchLoadResponse) -> bool:
    has_requests = load.num_requests_running or load.num_requests_waiting
    return load.ready and not has_requests and load.kv_cache_usage == 0
