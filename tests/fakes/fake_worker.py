"""A worker without a model: a real gRPC server whose tokens follow from what it was told.

It keeps its KV in pages like `tests.scheduler_svc.sim_model`, so outputs are `expected_output`'s.
Tests steer it: hold steps back, fail one, fall silent, lose its streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    PagewireError,
    abort_with,
)
from pagewire.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tests.scheduler_svc.sim_model import kv_of, next_token_id

Context = grpc.aio.ServicerContext[Any, Any]


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Start it with `start`; it can stop and start again on the same address."""

    def __init__(self, *, vocab_size: int = 1000, num_blocks: int = 100) -> None:
        self.vocab_size, self.num_blocks = vocab_size, num_blocks
        self.steps: list[worker_pb2.SchedulerOutput] = []
        self.num_initialized = 0
        self.seats: list[worker_pb2.InitializeRequest] = []
        self.holder = ""
        self.worker_epoch = 0
        self.token_offset = 0
        """Added to what it answers: it tells apart whose answer counts."""
        self.generations: list[int] = []
        self.weights_digest = "w"
        self.refusal: PagewireError | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.got_step = asyncio.Event()
        self.fail_next_steps = 0
        self.failing_request_ids: set[str] = set()
        self.process: common_pb2.ProcessFigures | None = None
        """What its heartbeats tell."""
        self.is_silent = False
        self.address = "127.0.0.1:0"
        self.was_closed = False
        self.sleep_levels: list[int] = []
        self.asleep: set[str] = set()
        self._server: grpc.aio.Server | None = None
        self._lease = worker_pb2.Lease()
        self._in_execute = False

    async def start(self) -> str:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self.address

    async def stop(self) -> None:
        """End everything at once, as kill -9 does."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Initialize(
        self, request: worker_pb2.InitializeRequest, context: Context
    ) -> AsyncIterator[worker_pb2.InitializeResponse]:
        if self._in_execute:
            await abort_with(context, FailedPreconditionError("held", reason="LEASE_HELD"))
        if self.refusal is not None:
            await abort_with(context, self.refusal)
        self.num_initialized += 1
        self.seats.append(request)
        if self.is_silent:
            await asyncio.Event().wait()
        if request.world_size > 1 and request.rank == 0:
            opened = worker_pb2.RendezvousOpened(rendezvous=f"host:1/key{self.num_initialized}")
            yield worker_pb2.InitializeResponse(rendezvous=opened)
        self._lease = request.lease
        self._lease.token = self.num_initialized
        progress = worker_pb2.InitializeProgress(stage="loading weights", done=1, total=2)
        yield worker_pb2.InitializeResponse(progress=progress)
        info = common_pb2.ModelInfo(
            architecture="Fake",
            vocab_size=self.vocab_size,
            max_position_embeddings=512,
            eos_token_ids=[self.vocab_size - 1],
            weights_digest=self.weights_digest,
        )
        yield worker_pb2.InitializeResponse(
            result=worker_pb2.InitializeResult(
                lease=self._lease,
                model_info=info,
                available_kv_cache_bytes=self.num_blocks * 64,
                bytes_per_block=64,
                dtype="float32",
            )
        )

    async def GetStatus(
        self, request: worker_pb2.GetStatusRequest, context: Context
    ) -> worker_pb2.GetStatusResponse:
        if self.is_silent:
            await asyncio.Event().wait()
        return worker_pb2.GetStatusResponse(
            lease_holder=self.holder, worker_epoch=self.worker_epoch
        )

    async def AllocateKvCache(
        self, request: worker_pb2.AllocateKvCacheRequest, context: Context
    ) -> worker_pb2.AllocateKvCacheResponse:
        self._block_size = request.block_size
        self._pages: dict[int, int] = {}
        return worker_pb2.AllocateKvCacheResponse(kv_cache_bytes=request.num_blocks * 64)

    async def Sleep(
        self, request: worker_pb2.WorkerServiceSleepRequest, context: Context
    ) -> worker_pb2.WorkerServiceSleepResponse:
        await self._check_lease(request.lease, context)
        self.sleep_levels.append(request.level)
        self.asleep = {"weights", "kv_cache"}
        self._pages = {}
        return worker_pb2.WorkerServiceSleepResponse()

    async def WakeUp(
        self, request: worker_pb2.WorkerServiceWakeUpRequest, context: Context
    ) -> worker_pb2.WorkerServiceWakeUpResponse:
        await self._check_lease(request.lease, context)
        self.asleep -= set(request.tags) or self.asleep
        return worker_pb2.WorkerServiceWakeUpResponse(is_sleeping=bool(self.asleep))

    async def _check_lease(self, lease: worker_pb2.Lease, context: Context) -> None:
        if lease != self._lease:
            await abort_with(context, FailedPreconditionError("no", reason="LEASE_LOST"))

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Context
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        self._in_execute = True
        self._requests: dict[int, _Request] = {}
        num_frames = num_steps = 0
        try:
            async for frame in request_iterator:
                num_frames += 1
                num_steps += frame.HasField("step")
                if frame.frame != num_frames or frame.step.step not in (0, num_steps):
                    await abort_with(context, InvalidRequestError("miscounted"))
                if frame.lease != self._lease:
                    await abort_with(context, FailedPreconditionError("no", reason="LEASE_LOST"))
                if frame.HasField("open"):
                    self.generations.append(frame.open.group_generation)
                    yield worker_pb2.ExecuteResponse(accepted=worker_pb2.ExecuteAccepted())
                elif frame.HasField("close"):
                    self.was_closed = True
                    return
                elif frame.HasField("step") and not self.is_silent:
                    self.got_step.set()
                    await self.go_on.wait()
                    yield self._answer(frame.step)
                elif not self.is_silent:
                    number = frame.heartbeat.sequence
                    beat = common_pb2.Heartbeat(
                        sequence=number, echo_sequence=number, process=self.process
                    )
                    yield worker_pb2.ExecuteResponse(heartbeat=beat)
        finally:
            self._in_execute = False

    def _answer(self, step: worker_pb2.SchedulerOutput) -> worker_pb2.ExecuteResponse:
        self.steps.append(step)
        if self.fail_next_steps > 0:
            self.fail_next_steps -= 1
            return self._fail(step, "on purpose")
        if not self._requests.keys() >= set(step.handles) - {
            new.handle for new in step.new_requests
        }:
            return self._fail(step, "a handle is not known")
        return worker_pb2.ExecuteResponse(output=self._run(step))

    def _fail(self, step: worker_pb2.SchedulerOutput, why: str) -> worker_pb2.ExecuteResponse:
        """Fail a step and forget, as a worker does, every request that it names."""
        for handle in (*step.handles, *step.finished_handles, *step.preempted_handles):
            self._requests.pop(handle, None)
        failed = worker_pb2.StepFailed(step=step.step, reason="TEST", message=why)
        return worker_pb2.ExecuteResponse(failed=failed)

    def _run(self, step: worker_pb2.SchedulerOutput) -> worker_pb2.ModelRunnerOutput:
        for handle in (*step.finished_handles, *step.preempted_handles):
            self._requests.pop(handle, None)  # a failed step may have forgotten it
        for new in step.new_requests:
            self._requests[new.handle] = _Request(new)
        rows = [self._requests[handle] for handle in step.handles]
        block_ids = iter(step.new_block_ids)
        for row, num_blocks in zip(rows, step.new_block_counts, strict=True):
            row.block_ids += [next(block_ids) for _ in range(num_blocks)]
        for row, num_new in zip(rows, step.num_scheduled_tokens, strict=True):
            row.write(self._pages, self._block_size, num_new)
        failed = [r.handle for r in rows if r.request_id in self.failing_request_ids]
        sampled = [
            [] if row.handle in failed else row.sample(self._pages, self._block_size)
            for row in rows
        ]
        return worker_pb2.ModelRunnerOutput(
            step=step.step,
            sampled_counts=[len(token_ids) for token_ids in sampled],
            sampled_token_ids=[
                token_id + self.token_offset for token_ids in sampled for token_id in token_ids
            ],
            failed_handles=failed,
            failed_reasons=["NAN_LOGITS"] * len(failed),
            failed_messages=["no number"] * len(failed),
        )


class _Request:
    """What the worker knows of one request."""

    def __init__(self, new: worker_pb2.NewRequestData) -> None:
        self.handle, self.request_id = new.handle, new.request_id
        self.token_ids = [*new.prompt_token_ids, *new.output_token_ids]
        self.block_ids = list(new.block_ids)
        self.num_computed_tokens = new.num_computed_tokens

    def write(self, pages: dict[int, int], block_size: int, num_new: int) -> None:
        start, end = self.num_computed_tokens, self.num_computed_tokens + num_new
        kv = pages.get(self._slot(start - 1, block_size), 0) if start else 0
        for position in range(start, end):
            kv = kv_of(kv, self.token_ids[position])
            pages[self._slot(position, block_size)] = kv
        self.num_computed_tokens = end

    def sample(self, pages: dict[int, int], block_size: int) -> list[int]:
        if self.num_computed_tokens < len(self.token_ids):
            return []
        slots = [self._slot(position, block_size) for position in range(self.num_computed_tokens)]
        self.token_ids.append(next_token_id([pages.get(slot) for slot in slots]))
        return self.token_ids[-1:]

    def _slot(self, position: int, block_size: int) -> int:
        return self.block_ids[position // block_size] * block_size + position % block_size
