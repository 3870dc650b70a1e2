"""A scheduler server in the test's own process, over a fake worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from pagewire.engine_config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.server import ServerConfig
from pagewire.v1 import scheduler_pb2_grpc
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.engine_state import EngineState
from scheduler_svc.server import SchedulerServer
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.grammars import FakeGrammars


class Stack:
    """A scheduler, its worker, and stubs to the scheduler."""

    def __init__(self, worker: FakeWorker, server: SchedulerServer, channel: grpc.aio.Channel):
        self.worker = worker
        self.server = server
        self.core = server.core
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    async def wait_idle(self) -> None:
        """Wait until no request is left."""
        async with asyncio.timeout(10):
            async for load in self.stub.WatchLoad(_fast()):
                if load.num_requests_running + load.num_requests_waiting == 0:
                    return


def _fast() -> object:
    from pagewire.v1 import scheduler_pb2

    return scheduler_pb2.WatchLoadRequest(interval_ms=50)


def make_service_config(*workers: str, **scheduler: int | str) -> SchedulerServiceConfig:
    return SchedulerServiceConfig(
        engine=EngineConfig(
            model=ModelConfig(max_model_len=64, served_model_name=("fake", "also")),
            cache=CacheConfig(block_size=4, num_gpu_blocks_override=40),
            scheduler=SchedulerConfig(
                **({"max_num_batched_tokens": 32, "max_num_seqs": 8} | scheduler)
            ),
        ),
        server=ServerConfig(listen="127.0.0.1:0", admin_listen="127.0.0.1:0", drain_timeout_s=10.0),
        workers=workers,
        tokenizers=(),
    )


async def wait_ready(server: SchedulerServer) -> None:
    ready = asyncio.Event()
    report = server.core.on_state

    def on_state(state: EngineState) -> None:
        report(state)
        if state is EngineState.READY:
            ready.set()

    server.core.on_state = on_state
    if server.core.state is not EngineState.READY:
        async with asyncio.timeout(10):
            await ready.wait()


@asynccontextmanager
async def running_stack(
    grammars: FakeGrammars | None = None, **scheduler: int | str
) -> AsyncIterator[Stack]:
    worker = FakeWorker()
    await worker.start()
    server = SchedulerServer(make_service_config(worker.address, **scheduler), grammars=grammars)
    await server.start()
    channel = open_channel(server.server.address)
    try:
        await wait_ready(server)
        yield Stack(worker, server, channel)
    finally:
        worker.go_on.set()
        await channel.close()
        await server.stop()
        await worker.stop()


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as started:
        yield started
