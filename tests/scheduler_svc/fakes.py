"""An executor and a client of the engine without gRPC, steered by tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from pagewire.engine_config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagewire.kit.errors import PagewireError
from pagewire.v1 import common_pb2
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
    StepFailedError,
    WorkerFacts,
    WorkerLostError,
    WorkerUnavailableError,
)
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.step_figures import StepTimings
from tests.scheduler_svc.factories import EOS, VOCAB_SIZE
from tests.scheduler_svc.sim_model import SimModel


def make_config(*, async_scheduling: bool = True, **cache: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(max_model_len=64),
        cache=CacheConfig(**({"block_size": 4, "num_gpu_blocks_override": 40} | cache)),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=32, max_num_seqs=8, async_scheduling=async_scheduling
        ),
    )


def make_facts(**overrides: object) -> WorkerFacts:
    values = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 128,
        "eos_token_ids": frozenset({EOS}),
        "available_kv_cache_bytes": 6400,
        "bytes_per_block": 64,
        "weights_digest": "w",
        "dtype": "float32",
        "sampler_version": "1",
        "model_info": common_pb2.ModelInfo(vocab_size=VOCAB_SIZE),
    }
    return WorkerFacts(**(values | overrides))


class FakeExecutor(Executor):
    """Runs steps on the simulated model; `go_on` holds them back, `lose` and `failures` hurt."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = make_facts()
        self.unavailable: list[Exception] = []
        self.allocation_error: PagewireError | None = None
        self.num_initialized = 0
        self.num_failing_steps = 0
        self.on_failure: Callable[[], None] = lambda: None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.in_step = asyncio.Event()
        self.is_closed = False
        self.steps: list[SchedulerOutput] = []
        self.in_flight: deque[SchedulerOutput] = deque()
        self.max_in_flight = 0
        self.masks: dict[int, dict[int, bytes]] = {}
        """By the id of the step, which `steps` keeps alive."""
        self.sleeps: list[int] = []
        self.asleep: set[str] = set()
        self.sleep_error: PagewireError | None = None
        self._model: SimModel | None = None
        self._lost: asyncio.Future[None] | None = None
        self._lost_reason: str | None = None
        self._changed = asyncio.Event()

    async def wait_steps(self, number: int) -> None:
        await self._wait(lambda: len(self.steps) >= number)

    async def wait_in_flight(self, number: int) -> None:
        await self._wait(lambda: len(self.in_flight) >= number)

    async def wait_empty(self) -> None:
        await self._wait(lambda: not self.in_flight)

    async def wait_initialized(self, number: int) -> None:
        await self._wait(lambda: self.num_initialized >= number)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    @property
    def lost_reason(self) -> str | None:
        return self._lost_reason

    def lose(self) -> None:
        self._lost_reason = "killed"
        if self._lost is not None and not self._lost.done():
            self._lost.set_exception(WorkerLostError("killed"))
        self.on_lost()

    async def initialize(self) -> WorkerFacts:
        if self.unavailable:
            raise self.unavailable.pop(0)
        self.num_initialized += 1
        self._changed.set()
        return self.facts

    async def allocate_kv_cache(self, plan: KvCachePlan) -> None:
        if self.allocation_error is not None:
            raise self.allocation_error
        self._model = SimModel(plan.num_blocks, plan.block_size)
        self.in_flight.clear()
        self.in_step.clear()
        self.asleep.clear()
        self._lost_reason = None

    async def send(self, output: SchedulerOutput) -> None:
        if self._lost_reason is not None:
            raise WorkerLostError(self._lost_reason)
        assert not self.asleep
        self.steps.append(output)
        self.in_flight.append(output)
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        self.in_step.set()
        self._changed.set()

    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        if self._lost_reason is not None:
            raise WorkerLostError(self._lost_reason)
        assert output in self.in_flight
        assert output.masked_rows
        assert id(output) not in self.masks
        self.masks[id(output)] = dict(masks)
        self._changed.set()

    async def receive(self) -> ModelRunnerOutput:
        self._lost = asyncio.get_running_loop().create_future()
        held = asyncio.ensure_future(self.go_on.wait())
        try:
            await asyncio.wait((held, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            held.cancel()
        if self._lost.done():
            self._lost.result()
        output = self.in_flight.popleft()
        self._changed.set()
        if not self.in_flight:
            self.in_step.clear()
        if self._model is None:
            raise WorkerUnavailableError("not allocated")
        if not self._model.knows_rows_of(output):
            self._model.fail(output)
            raise StepFailedError("a row is not known")
        if self.num_failing_steps > 0:
            self.num_failing_steps -= 1
            self._model.fail(output)
            self.on_failure()
            raise StepFailedError("on purpose")
        return self._model.execute(output)

    async def sleep(self, level: int) -> None:
        if self._lost_reason is not None:
            raise WorkerUnavailableError(self._lost_reason)
        if self.sleep_error is not None:
            raise self.sleep_error
        assert not self.in_flight
        assert self._model is not None
        assert self._model.num_requests == 0
        self._model.lose_everything()
        self.sleeps.append(level)
        self.asleep = {"weights", "kv_cache"}

    async def wake_up(self, tags: Collection[str]) -> bool:
        if self.sleep_error is not None:
            raise self.sleep_error
        self.asleep -= set(tags) or self.asleep
        return bool(self.asleep)

    async def close(self) -> None:
        self.is_closed = True


class FakeClient:
    """An `OutputSink` that remembers what it got."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.finished: dict[str, FinishedRequest] = {}
        self.num_frames = 0
        self.admitted: list[str] = []
        self.recovering: list[bool] = []
        self.suspicions: dict[str, int] = {}
        self.draining: list[float] = []
        self.error: PagewireError | None = None
        self._changed = asyncio.Event()

    async def wait_finished(self, *request_ids: str) -> None:
        async with asyncio.timeout(10):
            while not set(request_ids) <= set(self.finished):
                self._changed.clear()
                await self._changed.wait()

    async def wait_tokens(self, request_id: str, number: int) -> None:
        async with asyncio.timeout(10):
            while len(self.token_ids.get(request_id, [])) < number:
                self._changed.clear()
                await self._changed.wait()

    def put_admitted(self, request_id: str) -> None:
        self.admitted.append(request_id)
        self._changed.set()

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        self.num_frames += 1
        for request_id, token_ids in zip(outputs.request_ids, outputs.new_token_ids, strict=True):
            self.token_ids.setdefault(request_id, []).extend(token_ids)
        self.put_finished(outputs.finished)

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        self.finished |= {end.request_id: end for end in finished}
        self._changed.set()

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        self.suspicions |= counts

    def set_recovering(self, recovering: bool) -> None:
        self.recovering.append(recovering)

    def set_draining(self, deadline_s: float) -> None:
        self.draining.append(deadline_s)

    def end(self, error: PagewireError) -> None:
        self.error = error
