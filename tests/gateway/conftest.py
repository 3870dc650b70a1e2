"""A gateway on free loopback ports, between a fake scheduler and a fake tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.config import GatewayConfig, Timeouts
from gateway.server import SERVICE_NAME, GatewayServer
from pagewire.kit.channels import open_channel
from pagewire.kit.health import NOT_SERVING, SERVING
from pagewire.v1 import inference_pb2_grpc
from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.fake_tokenizer import FakeTokenizer


@dataclass
class Gateway:
    """A running gateway, its fakes and clients of it."""

    server: GatewayServer
    http: httpx.AsyncClient
    grpc: Any
    health: Any
    scheduler: FakeScheduler
    tokenizer: FakeTokenizer

    @property
    def base_url(self) -> str:
        return str(self.http.base_url)

    async def until_ready(self, ready: bool = True) -> None:
        request = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        wanted = SERVING if ready else NOT_SERVING
        async for answer in self.health.Watch(request, timeout=20):
            if answer.status == wanted:
                return


GatewayFactory = Callable[..., AbstractAsyncContextManager[Gateway]]


@pytest.fixture
def run_gateway() -> GatewayFactory:
    return _run_gateway


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with _run_gateway() as running:
        yield running


@asynccontextmanager
async def _run_gateway(
    scheduler: FakeScheduler | None = None,
    tokenizer: FakeTokenizer | None = None,
    wait: bool = True,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    fake_scheduler, fake_tokenizer = scheduler or FakeScheduler(), tokenizer or FakeTokenizer()
    async with fake_scheduler, fake_tokenizer:
        config = GatewayConfig(
            http_port=0,
            grpc_port=0,
            admin_listen=None,
            metrics_port=0,
            schedulers=(fake_scheduler.target,),
            tokenizers=(fake_tokenizer.target,),
            drain_timeout_s=1.0,
            timeouts=Timeouts(recovery_timeout_s=20.0, tokenizer_timeout_s=5.0),
        )
        server = GatewayServer(replace(config, **settings))
        try:
            await server.start()
            url = f"http://127.0.0.1:{server.http_server.port}"
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as http,
                open_channel(server.grpc_server.address) as channel,
            ):
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                health = health_pb2_grpc.HealthStub(channel)
                running = Gateway(server, http, stub, health, fake_scheduler, fake_tokenizer)
                if wait:
                    await running.until_ready()
                yield running
        finally:
            await server.stop()
