"""A whole stack sleeps and wakes: its worker's memory falls, and tokens stay what they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from psutil import Process

from pagewire.kit.channels import open_channel
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.completions import TokenRequest, one_by_one
from tests.e2e.stack import Stack, start_stack

KV_BYTES = 256 * 2**20
WEIGHT_BYTES = 250 * 2**20
"""Less than the embedded model's weights in bfloat16."""
TIMEOUT_S = 300.0
REQUEST = TokenRequest(
    (504, 3575, 282, 4649, 314),
    SamplingParams(max_tokens=8, temperature=0.9, seed=7, ignore_eos=True),
)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Stack]:
    with start_stack(
        "--model=smollm2", "--dtype=bfloat16", f"--kv-cache-memory-bytes={KV_BYTES}"
    ) as started:
        yield started


@asynccontextmanager
async def administrator(
    stack: Stack,
) -> AsyncIterator[scheduler_pb2_grpc.EngineAdminServiceAsyncStub]:
    async with open_channel(stack.scheduler_admin_target) as channel:
        yield scheduler_pb2_grpc.EngineAdminServiceStub(channel)


def private_bytes(process: Process) -> int:
    """Memory that is the process's own: file pages that others may have as well are not."""
    value: int = process.memory_full_info().uss
    return value


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("level", "least_freed"), [(1, KV_BYTES), (2, KV_BYTES + WEIGHT_BYTES)])
async def test_the_embedded_model_sleeps(smollm2: Stack, level: int, least_freed: int) -> None:
    worker = smollm2.child("worker_svc")
    async with administrator(smollm2) as admin:
        before = await one_by_one(smollm2.http_url, [REQUEST])
        awake_bytes = private_bytes(worker)
        await admin.Sleep(scheduler_pb2.SleepRequest(level=level), timeout=TIMEOUT_S)
        assert awake_bytes - private_bytes(worker) > 0.9 * least_freed
        response = await admin.WakeUp(scheduler_pb2.WakeUpRequest(), timeout=TIMEOUT_S)
        assert not response.is_sleeping
        assert await one_by_one(smollm2.http_url, [REQUEST]) == before
        assert private_bytes(worker) > awake_bytes - 0.2 * least_freed


@pytest.mark.parametrize("level", [1, 2])
async def test_the_simulated_worker_sleeps(sim_stack: Stack, level: int) -> None:
    async with administrator(sim_stack) as admin:
        before = await one_by_one(sim_stack.http_url, [REQUEST])
        await admin.Sleep(scheduler_pb2.SleepRequest(level=level), timeout=TIMEOUT_S)
        await admin.WakeUp(scheduler_pb2.WakeUpRequest(), timeout=TIMEOUT_S)
        assert await one_by_one(sim_stack.http_url, [REQUEST]) == before
