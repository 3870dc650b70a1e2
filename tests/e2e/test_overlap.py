"""The engine's loop on the real simulated worker over gRPC, with and without overlap."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagewire.sampling_params import SamplingParams
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.worker_client import GrpcExecutor
from tests.e2e.stack import ROOT
from tests.scheduler_svc.fakes import FakeClient
from tests.worker_svc.harness import VOCABULARY, running_worker, write_model
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.sim.oracle import expected_output

MAX_MODEL_LEN = 128
BLOCK_SIZE = 4
TINY, LARGE = 40, 2000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def make_config(
    model: Path,
    *,
    async_scheduling: bool = True,
    enable_prefix_caching: bool = True,
    chunk: int = 64,
    num_blocks: int = LARGE,
    step_time_us: int = 0,
    device: str = "sim",
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(model), dtype="float32", max_model_len=MAX_MODEL_LEN),
        cache=CacheConfig(
            block_size=BLOCK_SIZE,
            num_gpu_blocks_override=num_blocks,
            enable_prefix_caching=enable_prefix_caching,
        ),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=chunk,
            max_num_seqs=min(chunk, 33),
            async_scheduling=async_scheduling,
        ),
        device=DeviceConfig(device=device, sim_step_time_us=step_time_us),
    )


class CountingExecutor(GrpcExecutor):
    """The real executor; knows the steps that it sent and that have no answer."""

    def __init__(self, config: EngineConfig, address: str) -> None:
        super().__init__(config, [address], "scheduler", 1)
        self.steps: list[SchedulerOutput] = []
        self.max_in_flight = 0
        self._num_in_flight = 0
        self._changed = asyncio.Event()

    async def wait_in_flight(self, number: int) -> None:
        async with asyncio.timeout(30):
            while self._num_in_flight < number:
                self._changed.clear()
                await self._changed.wait()

    async def allocate_kv_cache(self, plan: object) -> None:
        self._num_in_flight = 0
        await super().allocate_kv_cache(plan)  # type: ignore[arg-type]

    async def send(self, output: SchedulerOutput) -> None:
        await super().send(output)
        self.steps.append(output)
        self._num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._num_in_flight)
        self._changed.set()

    async def receive(self) -> ModelRunnerOutput:
        result = await super().receive()
        self._num_in_flight -= 1
        return result


class Engine:
    """The engine's loop with one client."""

    def __init__(self, config: EngineConfig, address: str) -> None:
        self.executor = CountingExecutor(config, address)
        self.core = EngineCore(config, self.executor)
        self.client = FakeClient()
        self.client_id = self.core.attach(self.client)
        self.num_times_ready = 0
        self._ready = asyncio.Event()
        self.core.on_state = self._on_state

    def _on_state(self, state: EngineState) -> None:
        if state is EngineState.READY:
            self.num_times_ready += 1
            self._ready.set()

    async def wait_ready(self, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.num_times_ready < times:
                self._ready.clear()
                await self._ready.wait()

    def add(self, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        self.core.add_request(EngineCoreRequest(request_id, prompt, params, 0.0, self.client_id))


@asynccontextmanager
async def running_engine(config: EngineConfig, address: str) -> AsyncIterator[Engine]:
    engine = Engine(config, address)
    task = asyncio.create_task(engine.core.run())
    try:
        await engine.wait_ready()
        yield engine
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await engine.executor.close()


def make_requests(number: int) -> dict[str, tuple[list[int], SamplingParams]]:
    """Greedy and seeded requests that end by EOS, a stop id or length, some of one beginning."""
    rng = random.Random(7)
    common = [rng.randrange(300, 900) for _ in range(40)]
    requests = {}
    for index in range(number):
        own = [rng.randrange(300, 900) for _ in range(rng.randint(1, 40))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 40),
            temperature=float(index % 2),
            top_p=0.9,
            seed=index,
            stop_token_ids=(501, 502, 503, 504, 505, 506, 507, 508),
        )
        requests[f"r{index}"] = ([*common[: rng.choice([0, 20, 40])], *own], params)
    return requests


def alone(prompt: list[int], params: SamplingParams) -> list[int]:
    return expected_output(prompt, params, params.max_tokens or 0, VOCABULARY)


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("chunk", [16, 64, 4096])
@pytest.mark.parametrize("num_blocks", [TINY, LARGE])
async def test_33_requests_get_the_tokens_they_get_alone(
    model: Path, async_scheduling: bool, enable_prefix_caching: bool, chunk: int, num_blocks: int
) -> None:
    config = make_config(
        model,
        async_scheduling=async_scheduling,
        enable_prefix_caching=enable_prefix_caching,
        chunk=chunk,
        num_blocks=num_blocks,
    )
    requests = make_requests(33)
    async with (
        running_worker() as worker,
        running_engine(config, worker.server.address) as engine,
    ):
        for request_id, (prompt, params) in requests.items():
            engine.add(request_id, prompt, params)
        await engine.client.wait_finished(*requests)
        stats = engine.core.make_stats()
    assert engine.executor.max_in_flight == 1 + async_scheduling
    assert stats is not None and (stats.num_preemptions > 0) == (num_blocks == TINY)
    assert engine.client.token_ids == {i: alone(*request) for i, request in requests.items()}


async def test_overlap_wastes_one_token_for_each_end_by_a_token(model: Path) -> None:
    requests = make_requests(33)
    outputs = {i: alone(*request) for i, request in requests.items()}
    early = [i for i, output in outputs.items() if len(output) < requests[i][1].max_tokens]
    assert len(early) > 3
    num_scheduled = {}
    for async_scheduling in (True, False):
        config = make_config(model, async_scheduling=async_scheduling, enable_prefix_caching=False)
        async with (
            running_worker() as worker,
            running_engine(config, worker.server.address) as engine,
        ):
            for request_id, (prompt, params) in requests.items():
                engine.add(request_id, prompt, params)
            await engine.client.wait_finished(*requests)
            num_scheduled[async_scheduling] = sum(
                output.total_num_scheduled_tokens for output in engine.executor.steps
            )
    assert num_scheduled[False] < num_scheduled[True] <= num_scheduled[False] + len(early)


@pytest.fixture(scope="module")
def torch_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("torch")
    write_tiny_model(directory)
    return directory


async def outputs_of_torch(model: Path, **options: Any) -> dict[str, list[int]]:
    """Tokens of requests whose every token depends on the ones before, by penalties too."""
    rng = random.Random(5)
    common = [rng.randrange(3, 160) for _ in range(24)]
    ids = [f"r{index}" for index in range(12)]
    async with (
        running_worker() as worker,
        running_engine(
            make_config(model, device="cpu", **options), worker.server.address
        ) as engine,
    ):
        for index, request_id in enumerate(ids):
            prompt = [*common[: 8 * (index % 4)], *(rng.randrange(3, 160) for _ in range(9))]
            params = SamplingParams(
                max_tokens=20,
                temperature=float(index % 2),
                top_p=0.95,
                seed=index,
                repetition_penalty=1.3,
                frequency_penalty=0.5,
                presence_penalty=0.2,
                min_tokens=4,
            )
            engine.add(request_id, prompt, params)
        await engine.client.wait_finished(*ids)
        stats = engine.core.make_stats()
    num_blocks = options.get("num_blocks", LARGE)
    assert stats is not None and (stats.num_preemptions > 0) == (num_blocks == TINY)
    return engine.client.token_ids


@pytest.mark.parametrize("chunk", [16, 4096])
async def test_a_torch_model_gives_the_same_tokens_with_overlap(
    torch_model: Path, chunk: int
) -> None:
    plain = await outputs_of_torch(
        torch_model, async_scheduling=False, enable_prefix_caching=False, chunk=4096
    )
    assert sum(map(len, plain.values())) > 12 * 10
    for num_blocks in (TINY, LARGE):
        overlapped = await outputs_of_torch(torch_model, chunk=chunk, num_blocks=num_blocks)
        assert overlapped == plain


@contextmanager
def worker_process(address: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "worker_svc"),
            *(f"--listen={address}", f"--admin-listen={address}.admin", "--metrics-port=0"),
        ],
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(400)
async def test_kill_9_of_the_worker_with_two_steps_in_flight_loses_no_token(
    model: Path, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/w"
    requests = make_requests(16)
    outputs = {i: alone(*request) for i, request in requests.items()}
    config = make_config(model, step_time_us=20_000, num_blocks=TINY)
    with worker_process(address) as first:
        async with running_engine(config, address) as engine:
            for request_id, (prompt, params) in requests.items():
                engine.add(request_id, prompt, params)
            longest = max(outputs, key=lambda request_id: len(outputs[request_id]))
            await engine.client.wait_tokens(longest, 3)
            await engine.executor.wait_in_flight(2)
            first.kill()
            first.wait()
            with worker_process(address):
                await engine.wait_ready(times=2)
                await engine.client.wait_finished(*requests)
    assert engine.core.counters.num_workers_lost == 1
    assert engine.client.token_ids == outputs
