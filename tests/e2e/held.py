"""Requests that all wait before the first of them runs, so that no machine is too slow to crowd."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagewire.kit.channels import open_channel
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.completions import TokenRequest, complete, http_client
from tests.e2e.stack import Stack

TIMEOUT_S = 60.0
_PAUSE = scheduler_pb2.PauseRequest(mode=scheduler_pb2.PAUSE_MODE_KEEP)
_LOAD = scheduler_pb2.WatchLoadRequest(interval_ms=10)


async def at_once(stack: Stack, requests: Sequence[TokenRequest]) -> list[list[int]]:
    """Token ids of requests that an idle engine begins with together, queued in their order."""
    async with (
        open_channel(stack.scheduler_target) as scheduler_channel,
        open_channel(stack.scheduler_admin_target) as admin_channel,
        http_client(stack.http_url) as client,
    ):
        scheduler = scheduler_pb2_grpc.SchedulerServiceStub(scheduler_channel)
        admin = scheduler_pb2_grpc.EngineAdminServiceStub(admin_channel)
        await admin.Pause(_PAUSE, timeout=TIMEOUT_S)
        async with asyncio.TaskGroup() as group:
            tasks = []
            loads = scheduler.WatchLoad(_LOAD, timeout=TIMEOUT_S)
            for request in requests:
                tasks.append(group.create_task(complete(client, request)))
                async for load in loads:
                    if load.num_requests_waiting == len(tasks):
                        break
            loads.cancel()
            await admin.Resume(scheduler_pb2.ResumeRequest(), timeout=TIMEOUT_S)
        return [task.result() for task in tasks]
