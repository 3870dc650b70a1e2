"""A worker as its scheduler sees it: a model directory, a server, a client for its protocol.

Also a runner whose behaviour the test decides, for the worker's lifecycle.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from pagewire.engine_config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.server import ServerConfig
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from pagewire.wire import engine_config_to_proto, sampling_params_to_proto
from worker_svc.config import WorkerConfig
from worker_svc.grammar_masks import GrammarMasks, MaskSource, no_masks
from worker_svc.runners import RunnerFactory, make_runner
from worker_svc.server import WorkerServer
from worker_svc.sim.sampling import SimVocabulary
from worker_svc.step import ModelInfo, ModelRunnerOutput, ProgressCallback, SchedulerOutput

BLOCK_SIZE = 4
VOCAB_SIZE = 1000
EOS_TOKEN_ID = 7
VOCABULARY = SimVocabulary(VOCAB_SIZE, (EOS_TOKEN_ID,))
WAIT_S = 20.0

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": EOS_TOKEN_ID,
    "bos_token_id": 1,
}
_TOKENIZER = {"model": {"vocab": {f"t{i}": i for i in range(VOCAB_SIZE)}}}


def write_model(directory: Path) -> Path:
    """A model without weights, which is all that the simulated worker reads."""
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    (directory / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    return directory


def sim_config(model: Path, **device: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(model)),
        cache=CacheConfig(block_size=BLOCK_SIZE, kv_cache_memory_bytes=2**20),
        device=DeviceConfig(device="sim", **device),
    )


@asynccontextmanager
async def running_worker(
    runner_factory: RunnerFactory = make_runner,
    lease_timeout_s: float = 10.0,
    profiler_dir: Path | None = None,
) -> AsyncIterator[WorkerServer]:
    """A worker that listens on a free port."""
    listen = ServerConfig(listen="127.0.0.1:0", admin_listen="127.0.0.1:0", drain_timeout_s=5)
    server = WorkerServer(
        WorkerConfig(listen, lease_timeout_s, profiler_dir=profiler_dir), runner_factory
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: WorkerServer, scheduler_id: str = "s1") -> AsyncIterator[Scheduler]:
    """A scheduler with a channel to the worker."""
    async with open_channel(server.server.address) as channel:
        yield Scheduler(channel, scheduler_id)


class Scheduler:
    """The calls of a scheduler, with its lease."""

    def __init__(self, channel: grpc.aio.Channel, scheduler_id: str, epoch: int = 1) -> None:
        self.stub: worker_pb2_grpc.WorkerServiceAsyncStub = worker_pb2_grpc.WorkerServiceStub(
            channel
        )
        self.lease = worker_pb2.Lease(scheduler_id=scheduler_id, epoch=epoch)
        self.events: list[worker_pb2.InitializeResponse] = []

    def initialize_request(self, config: EngineConfig) -> worker_pb2.InitializeRequest:
        return worker_pb2.InitializeRequest(
            lease=worker_pb2.Lease(scheduler_id=self.lease.scheduler_id, epoch=self.lease.epoch),
            engine_config=engine_config_to_proto(config),
            config_digest=config.digest(),
            world_size=1,
            group_generation=1,
        )

    async def initialize(self, config: EngineConfig) -> worker_pb2.InitializeResult:
        """Call Initialize to its end, and keep the lease."""
        call = self.stub.Initialize(self.initialize_request(config), timeout=WAIT_S)
        self.events = [event async for event in call]
        result = self.events[-1].result
        self.lease = result.lease
        return result

    async def allocate(self, num_blocks: int = 64) -> worker_pb2.AllocateKvCacheResponse:
        request = worker_pb2.AllocateKvCacheRequest(
            lease=self.lease, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=512
        )
        return await self.stub.AllocateKvCache(request, timeout=WAIT_S)

    async def status(self) -> worker_pb2.GetStatusResponse:
        return await self.stub.GetStatus(worker_pb2.GetStatusRequest(), timeout=WAIT_S)

    async def open(self, config: EngineConfig) -> Stream:
        """Initialize, allocate and open an Execute stream."""
        await self.initialize(config)
        await self.allocate()
        stream = Stream(self)
        await stream.send(open=worker_pb2.ExecuteOpen(group_generation=1))
        await stream.read("accepted")
        return stream


class Stream:
    """One Execute stream from the scheduler's side."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.call = scheduler.stub.Execute(timeout=WAIT_S)
        self.lease = scheduler.lease
        self.frame = 0
        self.step = 0

    async def send(self, **payload: Any) -> None:
        self.frame += 1
        request = worker_pb2.ExecuteRequest(frame=self.frame, lease=self.lease, **payload)
        await self.call.write(request)

    async def send_step(self, **columns: Any) -> None:
        self.step += 1
        await self.send(step=worker_pb2.SchedulerOutput(step=self.step, **columns))

    async def read(self, kind: str) -> Any:
        """The next answer but heartbeats, which must be of this kind."""
        while True:
            answer: Any = await self.call.read()
            if answer is grpc.aio.EOF:
                raise AssertionError(f"the stream ended: {await self.call.code()}")
            found = answer.WhichOneof("payload")
            if found != "heartbeat":
                assert found == kind, answer
                return getattr(answer, found)

    async def end(self) -> grpc.StatusCode:
        """The status that the stream ends with, answers that come before it dropped."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code()


def new_request(
    handle: int,
    prompt_token_ids: Sequence[int],
    block_ids: Sequence[int],
    params: SamplingParams | None = None,
    **fields: Any,
) -> worker_pb2.NewRequestData:
    return worker_pb2.NewRequestData(
        handle=handle,
        request_id=f"r{handle}",
        prompt_token_ids=prompt_token_ids,
        sampling_params=sampling_params_to_proto(params or SamplingParams(temperature=0.0)),
        block_ids=block_ids,
        **fields,
    )


async def eventually(condition: Any) -> None:
    """Ask until `await condition()` is true; each question is a call that others run beside."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            continue


MODEL_INFO = ModelInfo(
    weight_bytes=4096,
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB_SIZE,
    max_model_len=512,
    num_layers=2,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=32,
    dtype="float32",
    attention_backend="torch",
    eos_token_ids=(EOS_TOKEN_ID,),
    bos_token_id=1,
    weights_digest="w",
)


class ScriptedRunner:
    """A runner whose load and steps wait for, or fail as, the test says."""

    def __init__(self) -> None:
        self.num_loads = 0
        self.num_resets = 0
        self.num_wakes = 0
        self.sleeps: list[int] = []
        self.woken_info = MODEL_INFO
        self.steps: list[SchedulerOutput] = []
        self.masks: list[GrammarMasks] = []
        self.load_error: BaseException | None = None
        self.load_hook: Callable[[], object] = lambda: None
        self.step_error: BaseException | None = None
        self.loading = threading.Event()
        self.may_load = threading.Event()
        self.may_load.set()
        self.stepping = threading.Event()
        self.may_step = threading.Event()
        self.may_step.set()

    def load(self, progress: ProgressCallback) -> ModelInfo:
        self.num_loads += 1
        self.load_hook()
        progress("load_weights", 0.5)
        self.loading.set()
        wait(self.may_load)
        progress("load_weights", 1.0)
        if self.load_error is not None:
            raise self.load_error
        return MODEL_INFO

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 256 * block_size

    def available_kv_bytes(self) -> int:
        return 2**20

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        return

    def reset(self) -> None:
        self.num_resets += 1

    def sleep(self, level: int) -> None:
        self.sleeps.append(level)

    def wake_weights(self, progress: ProgressCallback) -> ModelInfo:
        self.num_wakes += 1
        if self.load_error is not None:
            raise self.load_error
        return self.woken_info

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        self.steps.append(scheduler_output)
        self.stepping.set()
        wait(self.may_step)
        if scheduler_output.handles and scheduler_output.masked_handles:
            self.masks.append(masks())
        if self.step_error is not None and scheduler_output.handles:
            raise self.step_error
        num_rows = len(scheduler_output.handles)
        return ModelRunnerOutput(
            scheduler_output.step, scheduler_output.handles, [1] * num_rows, [9] * num_rows
        )


def wait(event: threading.Event) -> None:
    if not event.wait(WAIT_S):
        raise TimeoutError("the test never let the runner go on")
