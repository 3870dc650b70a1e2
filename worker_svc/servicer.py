"""The gRPC handlers of the worker: convert, call the worker, convert back.

Thin: lifecycle is `worker`, the Execute stream is `execute_session`. What is raised here becomes a
status in the kit's interceptor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from pagewire.kit.errors import DeadlineExceededError, InvalidRequestError, UnimplementedError
from pagewire.kit.pulse import ProcessFigures, Pulse, no_figures
from pagewire.kit.spans import NO_SPANS, Spans
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from worker_svc import convert
from worker_svc.execute_session import Answer, ExecuteSession, Frame, OpenFrame
from worker_svc.request_frames import with_spans
from worker_svc.worker import Worker

Context = grpc.aio.ServicerContext[Any, Any]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`WorkerService`."""

    def __init__(
        self,
        worker: Worker,
        process: Callable[[], ProcessFigures | None] = no_figures,
        spans: Spans = NO_SPANS,
    ) -> None:
        """Serve calls.

        Args:
            worker: What they are for.
            process: Gives what heartbeats tell of this process.
            spans: Where those of requests go.
        """
        self._spans = spans
        self._worker = worker
        self._process = process

    async def Initialize(
        self, request: worker_pb2.InitializeRequest, context: Context
    ) -> AsyncIterator[worker_pb2.InitializeResponse]:
        call = convert.initialize_call(request)
        async with aclosing(self._worker.initialize(call)) as events:
            async for event in events:
                yield convert.initialize_response(event)

    async def AllocateKvCache(
        self, request: worker_pb2.AllocateKvCacheRequest, context: Context
    ) -> worker_pb2.AllocateKvCacheResponse:
        num_bytes = await self._worker.allocate_kv_cache(convert.kv_cache_call(request))
        return worker_pb2.AllocateKvCacheResponse(kv_cache_bytes=num_bytes)

    # Writes through the context: half the cost of yielding, and the session can be ended while it
    # waits for a peer that does not read.
    async def Execute(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Context
    ) -> None:
        steps = convert.frames(request_iterator)
        if self._spans.is_on:
            steps = with_spans(steps, self._spans)
        async with aclosing(steps) as frames:
            opened, generation = await self._read_open(frames)
            with self._worker.execution(opened.lease, generation) as execution:
                session = ExecuteSession(
                    execution,
                    self._worker.epoch,
                    self._worker.lease_timeout_s,
                    pulse=Pulse(self._process),
                )
                # On its own: a call that ends while its first write is under way, which would carry
                # the metadata, can be given no status.
                await context.send_initial_metadata(())
                await session.run(frames, _Sender(context).send)

    async def _read_open(self, frames: AsyncIterator[Frame]) -> tuple[Frame, int]:
        try:
            async with asyncio.timeout(self._worker.lease_timeout_s):
                frame = await anext(frames, None)
        except TimeoutError as error:
            message = "no open frame came in time"
            raise DeadlineExceededError(message, reason="NO_OPEN_FRAME") from error
        if frame is None or not isinstance(frame.payload, OpenFrame) or frame.number != 1:
            raise InvalidRequestError("the first frame must be open, number 1", reason="NOT_OPEN")
        return frame, frame.payload.group_generation

    async def LoadLora(
        self, request: worker_pb2.WorkerServiceLoadLoraRequest, context: Context
    ) -> worker_pb2.WorkerServiceLoadLoraResponse:
        _refuse("LoadLora")

    async def UnloadLora(
        self, request: worker_pb2.WorkerServiceUnloadLoraRequest, context: Context
    ) -> worker_pb2.WorkerServiceUnloadLoraResponse:
        _refuse("UnloadLora")

    async def Sleep(
        self, request: worker_pb2.WorkerServiceSleepRequest, context: Context
    ) -> worker_pb2.WorkerServiceSleepResponse:
        await self._worker.sleep(convert.lease_from_proto(request.lease), request.level)
        return worker_pb2.WorkerServiceSleepResponse()

    async def WakeUp(
        self, request: worker_pb2.WorkerServiceWakeUpRequest, context: Context
    ) -> worker_pb2.WorkerServiceWakeUpResponse:
        lease = convert.lease_from_proto(request.lease)
        is_sleeping = await self._worker.wake_up(lease, list(request.tags))
        return worker_pb2.WorkerServiceWakeUpResponse(is_sleeping=is_sleeping)

    async def GetStatus(
        self, request: worker_pb2.GetStatusRequest, context: Context
    ) -> worker_pb2.GetStatusResponse:
        return convert.status_response(self._worker.status())


class WorkerAdminServicer(worker_pb2_grpc.WorkerAdminServiceServicer):
    """`WorkerAdminService`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Sleep(
        self, request: worker_pb2.WorkerAdminServiceSleepRequest, context: Context
    ) -> worker_pb2.WorkerAdminServiceSleepResponse:
        await self._worker.sleep_unheld(request.level)
        return worker_pb2.WorkerAdminServiceSleepResponse()

    async def WakeUp(
        self, request: worker_pb2.WorkerAdminServiceWakeUpRequest, context: Context
    ) -> worker_pb2.WorkerAdminServiceWakeUpResponse:
        await self._worker.wake_up_unheld(list(request.tags))
        return worker_pb2.WorkerAdminServiceWakeUpResponse()

    async def StartProfile(
        self, request: worker_pb2.StartProfileRequest, context: Context
    ) -> worker_pb2.StartProfileResponse:
        call = convert.profile_call(request)
        return convert.start_profile_response(call, await self._worker.start_profile(call))

    async def StopProfile(
        self, request: worker_pb2.StopProfileRequest, context: Context
    ) -> worker_pb2.StopProfileResponse:
        result = await self._worker.profile_result(wait=request.wait)
        return convert.stop_profile_response(result)


class _Sender:
    """Numbers the frames of the way back."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last_frame = 0

    async def send(self, answer: Answer) -> None:
        self._last_frame += 1
        await self._context.write(convert.execute_response(self._last_frame, answer))


def _refuse(name: str) -> NoReturn:
    raise UnimplementedError(f"{name} is not served by this version", reason="NOT_SERVED")
