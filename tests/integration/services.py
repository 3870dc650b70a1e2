"""The four services on one event loop, over real gRPC, with the simulated worker.

`running_stack` starts them on free ports of loopback and ends them. Each has its own registry of
metrics, as it has in a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import GatewayConfig, Timeouts
from gateway.server import GatewayServer
from pagewire.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagewire.kit.server import ServerConfig
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.server import SchedulerServer
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.server import TokenizerServer
from worker_svc.config import WorkerConfig
from worker_svc.server import WorkerServer

MODEL = "sim"
MAX_MODEL_LEN = 512
WAIT_S = 30.0
_ANYWHERE = ServerConfig(listen="127.0.0.1:0", drain_timeout_s=0.0)

Samples = dict[str, float]
"""Values by name and labels, as they stand in an exposition."""


@dataclass
class Replica:
    """A scheduler and the workers that it may claim."""

    scheduler: SchedulerServer
    workers: list[WorkerServer]

    @property
    def claimed(self) -> WorkerServer:
        """The worker that runs its steps."""
        return next(w for w in self.workers if w.worker.status().lease_holder)


@dataclass
class Services:
    """What runs."""

    gateway: GatewayServer
    tokenizer: TokenizerServer
    replicas: list[Replica]
    http: httpx.AsyncClient
    registries: dict[str, list[CollectorRegistry]] = field(default_factory=dict)
    """By service."""

    async def complete(self, prompt: list[int], max_tokens: int, n: int = 1) -> None:
        """Run a request to its end, which nothing but `max_tokens` brings."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "n": n, "ignore_eos": True, "seed": 1}
        answer = await self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == max_tokens * n

    async def until(self, name: str, total: float) -> None:
        """Wait until a metric of the gateway, summed over its labels, is what it must become."""
        async with asyncio.timeout(WAIT_S):
            while (now := total_of(await self.exposition(), name)) != total:
                assert now < total, (name, now)
                await asyncio.sleep(0.02)  # asked again: engines tell of themselves now and then

    async def until_gone(self, name: str, engine: str) -> None:
        """Wait until the gateway shows a metric of that engine no more."""
        label = f"('engine', '{engine}')"
        async with asyncio.timeout(WAIT_S):
            while True:
                samples = await self.exposition()
                if not any(key.startswith(name) and label in key for key in samples):
                    return
                await asyncio.sleep(0.02)  # asked again: nothing tells when figures vanish

    async def exposition(self) -> Samples:
        """What the gateway shows."""
        return parse((await self.http.get("/metrics")).text)


def parse(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def samples_of(registry: CollectorRegistry) -> Samples:
    return parse(generate_latest(registry).decode())


def total_of(samples: Samples, name: str, *labels: str) -> float:
    """The sum of a metric's samples whose labels have these values among them."""
    return sum(
        value
        for key, value in samples.items()
        if key.partition("[")[0] == name and all(f"'{label}'" in key for label in labels)
    )


@asynccontextmanager
async def running_stack(
    num_replicas: int = 1, num_workers: int = 1, step_time_us: int = 0
) -> AsyncIterator[Services]:
    """Start everything, wait until the gateway has every replica, and end it.

    Args:
        num_replicas: Schedulers behind the gateway.
        num_workers: Of each scheduler, one of which it uses.
        step_time_us: Of a simulated step.
    """
    async with AsyncExitStack() as stack:
        tokenizer = TokenizerServer(TokenizerServiceConfig(server=_ANYWHERE))
        stack.push_async_callback(tokenizer.stop)
        await tokenizer.start()
        replicas = [
            await _start_replica(stack, num_workers, step_time_us) for _ in range(num_replicas)
        ]
        config = GatewayConfig(
            http_port=0,
            grpc_port=0,
            admin_listen=None,
            metrics_port=0,
            schedulers=tuple(each.scheduler.server.address for each in replicas),
            tokenizers=(tokenizer.server.address,),
            drain_timeout_s=0.0,
            timeouts=Timeouts(recovery_timeout_s=WAIT_S),
        )
        gateway = GatewayServer(config)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.http_server.port}"
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=WAIT_S))
        services = Services(gateway, tokenizer, replicas, http)
        services.registries = {
            "gateway": [gateway.grpc_server.registry],
            "tokenizer": [tokenizer.server.registry],
            "scheduler": [each.scheduler.server.registry for each in replicas],
            "worker": [w.server.registry for each in replicas for w in each.workers],
        }
        await services.until("pagewire:gateway_scheduler_up", num_replicas)
        await services.until("pagewire:engine_ready", num_replicas)
        yield services


async def _start_replica(stack: AsyncExitStack, num_workers: int, step_time_us: int) -> Replica:
    workers = [WorkerServer(WorkerConfig(server=_ANYWHERE)) for _ in range(num_workers)]
    for worker in workers:
        stack.push_async_callback(worker.stop)
        await worker.start()
    engine = EngineConfig(
        model=ModelConfig(max_model_len=MAX_MODEL_LEN, served_model_name=(MODEL,)),
        cache=CacheConfig(block_size=16, num_gpu_blocks_override=256),
        scheduler=SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=16),
        device=DeviceConfig(device="sim", sim_step_time_us=step_time_us),
    )
    scheduler = SchedulerServer(
        SchedulerServiceConfig(
            engine=engine,
            server=_ANYWHERE,
            workers=tuple(worker.server.address for worker in workers),
            tokenizers=(),
        )
    )
    stack.push_async_callback(scheduler.stop)
    await scheduler.start()
    return Replica(scheduler, workers)
