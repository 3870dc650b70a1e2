"""A scheduler with `VllmEngine` in the test's own process, over a fake worker and tokenizer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from pagewire.kit.channels import open_channel
from pagewire.v1 import scheduler_pb2, tokenizer_pb2
from scheduler_svc.server import SchedulerServer
from scheduler_svc.vocabulary import Vocabulary
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.fakes.fake_worker import FakeWorker
from tests.scheduler_svc.conftest import Stack, make_service_config

FILES = {"tokenizer.json": b'{"a": 1}' * 20_000, "config.json": b"{}"}
VOCABULARY = Vocabulary([f"<{i}>".encode() for i in range(1000)], frozenset(), "")


class FilesTokenizer(FakeTokenizer):
    """Has files, and the fingerprint that the fake worker has: none."""

    def __init__(self, fingerprint: str = "") -> None:
        super().__init__(fingerprint)
        self.digest: str | None = None

    async def GetTokenizerFiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for name, content in FILES.items():
            digest = self.digest or hashlib.sha256(content).hexdigest()
            middle = len(content) // 2
            parts = ((content[:middle], ""), (content[middle:], digest))
            for part, part_digest in parts:
                yield tokenizer_pb2.GetTokenizerFilesResponse(
                    name=name, size=len(content), chunk=part, sha256=part_digest
                )


class VllmStack(Stack):
    """A stack with a stub to `VllmEngine`, and its servicer."""

    def __init__(
        self, worker: FakeWorker, server: SchedulerServer, *channels: grpc.aio.Channel
    ) -> None:
        super().__init__(worker, server, channels[0])
        self.vllm = vllm_engine_pb2_grpc.VllmEngineStub(channels[1])
        assert server.vllm_engine is not None
        self.front_door = server.vllm_engine
        self.servicer = server.vllm_engine.servicer

    async def wait_load(self, running: int, waiting: int = 0) -> None:
        """Wait until so many requests are there."""
        async with asyncio.timeout(10):
            async for load in self.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50)):
                if (load.num_requests_running, load.num_requests_waiting) == (running, waiting):
                    return

    async def generate(self, **fields: Any) -> list[Any]:
        """The messages of a call: chunks and completes."""
        call = self.vllm.Generate(generate_request(**fields))
        return [getattr(m, m.WhichOneof("response")) async for m in call]


def generate_request(
    prompt: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9),
    request_id: str = "",
    stream: bool = False,
    **params: Any,
) -> vllm_engine_pb2.GenerateRequest:
    return vllm_engine_pb2.GenerateRequest(
        request_id=request_id,
        tokenized=vllm_engine_pb2.TokenizedInput(input_ids=prompt),
        stream=stream,
        sampling_params=vllm_engine_pb2.SamplingParams(
            **({"max_tokens": 5, "ignore_eos": True} | params)
        ),
    )


def when_listening(server: SchedulerServer) -> asyncio.Event:
    """Set when `VllmEngine` listens and serves."""
    front_door, listening = server.vllm_engine, asyncio.Event()
    assert front_door is not None
    set_serving = front_door.set_serving

    async def set_serving_and_tell(serving: bool, reason: str = "") -> None:
        await set_serving(serving, reason)
        if serving:
            listening.set()

    front_door.set_serving = set_serving_and_tell  # type: ignore[method-assign]
    return listening


@asynccontextmanager
async def running_vllm_stack(
    tokenizers: tuple[str, ...] = (), **scheduler: int | str
) -> AsyncIterator[VllmStack]:
    worker = FakeWorker()
    config = make_service_config(await worker.start(), **scheduler)
    server = SchedulerServer(replace(config, vllm_grpc_listen="127.0.0.1:0", tokenizers=tokenizers))
    listening = when_listening(server)
    await server.start()
    try:
        async with asyncio.timeout(10):
            await listening.wait()
        assert server.vllm_engine is not None
        async with (
            open_channel(server.server.address) as channel,
            open_channel(server.vllm_engine.server.address) as vllm_channel,
        ):
            yield VllmStack(worker, server, channel, vllm_channel)
            worker.go_on.set()
    finally:
        worker.go_on.set()
        await server.stop()
        await worker.stop()


@pytest.fixture
async def stack() -> AsyncIterator[VllmStack]:
    async with running_vllm_stack() as started:
        yield started
