"""One EngineStream: all requests of this gateway on one scheduler, until the stream is lost.

Adds and aborts collect in an outbox and go up in one frame at a time; frames that come down are
columns, and all their rows go to the token sink in one call. Handles are valid within the stream.
Reconnecting, recovery and choosing among schedulers belong to its owner, `engine_client`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.generation import AbortReason, FinishReason
from gateway.live_request import (
    EngineFinish,
    EngineRequest,
    LiveRequest,
    StreamOwner,
    TokenSink,
)
from gateway.logprobs import read_output_logprobs, read_prompt_logprobs
from gateway.streams import StreamLostError, check_columns, expire, run_until_one_ends
from gateway.trace.step_ledger import NO_LEDGER, Moment, StepLedger
from pagewire.kit.errors import (
    DeadlineExceededError,
    InternalError,
    PagewireError,
    error_class,
)
from pagewire.kit.heartbeat import Watchdog, send_heartbeats
from pagewire.kit.logs import get_logger
from pagewire.kit.pulse import Pulse
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from pagewire.wire import sampling_params_to_proto

log = get_logger("gateway.engine_stream")

# Adds go into one frame until it has this many bytes, so that frames stay far below the message
# size limit.
_MAX_FRAME_BYTES = 8 * 1024 * 1024

_GOODBYE_TIMEOUT_S = 1.0

_ABORT_REASONS = {
    AbortReason.STOP_STRING: common_pb2.ABORT_REASON_STOP_STRING,
    AbortReason.CLIENT_GONE: common_pb2.ABORT_REASON_CLIENT_GONE,
    AbortReason.DEADLINE: common_pb2.ABORT_REASON_DEADLINE,
    AbortReason.SHUTDOWN: common_pb2.ABORT_REASON_SHUTDOWN,
    AbortReason.MOVED: common_pb2.ABORT_REASON_MOVED,
}
_FINISH_REASONS: dict[int, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
    common_pb2.FINISH_REASON_REPETITION: FinishReason.REPETITION,
}
# A scheduler that is going away refuses with it.
_DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True)
class GatewayIdentity:
    """Who this gateway process is, to every scheduler."""

    gateway_id: str
    epoch: int


class EngineStream:
    """Owned by one `EngineClient`; used from its event loop only.

    `requests` holds what the scheduler has from us and has not ended, by handle.
    """

    def __init__(
        self,
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub,
        sink: TokenSink,
        owner: StreamOwner,
        ledger: StepLedger = NO_LEDGER,
    ) -> None:
        self._ledger = ledger
        self._stub = stub
        self._owner = owner
        self._sink = sink
        self._next_handle = itertools.count(1)
        self._frames = itertools.count(1)
        self.pulse = Pulse()
        self.num_frames = 0
        """That came from the scheduler."""
        self.num_tokens = 0
        """In those frames."""
        self._requests: dict[int, LiveRequest] = {}
        self._handles: dict[LiveRequest, int] = {}
        self._adds: deque[scheduler_pb2.EngineAdd] = deque()
        self._aborts: list[tuple[int, AbortReason]] = []
        self._outbox = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._call: Any = None
        self.is_draining = False
        self.is_recovering = False
        """It has no worker: requests wait there."""

    async def open(
        self, identity: GatewayIdentity, generation: int, timeout_s: float
    ) -> scheduler_pb2.EngineStreamAccepted:
        """Open the stream and wait until the scheduler has accepted it.

        Raises:
            StreamLostError: It did not.
            grpc.aio.AioRpcError: The call failed.
        """
        self._call = self._stub.EngineStream()
        hello = scheduler_pb2.EngineStreamOpen(
            gateway_id=identity.gateway_id, gateway_epoch=identity.epoch, generation=generation
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(scheduler_pb2.EngineStreamRequest(open=hello))
                first = await self._read()
        except TimeoutError:
            raise StreamLostError(f"the stream was not accepted in {timeout_s:g} s") from None
        if not first.HasField("accepted"):
            raise StreamLostError("the first frame does not accept the stream")
        self._dispatch(first)
        return first.accepted

    async def run(self) -> None:
        """Carry frames both ways until the stream is lost; always raises.

        Raises:
            StreamLostError: The scheduler ended it or is silent.
            grpc.aio.AioRpcError: The call failed.
        """
        watchdog = Watchdog()
        await run_until_one_ends(
            self._read_frames(watchdog),
            self._write_frames(),
            send_heartbeats(self._beat),
            expire(watchdog),
        )

    async def say_goodbye(self) -> None:
        """Send what waits and a clean end, so that the scheduler needs no watchdog to see it.

        Comes before `run` is cancelled: grpc.aio ends a call whose pending read is cancelled.
        """
        try:
            async with asyncio.timeout(_GOODBYE_TIMEOUT_S):
                await self._write_outbox()
                await self._write(scheduler_pb2.EngineStreamRequest(close=True))
        except (TimeoutError, StreamLostError, grpc.aio.AioRpcError) as exc:
            log.info("engine_stream_not_closed_cleanly", error=str(exc))

    def cancel(self) -> None:
        """End the call at once; idempotent."""
        if self._call is not None:
            self._call.cancel()

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> list[LiveRequest]:
        """What the engine has from us and has not ended, in the order of adding."""
        return list(self._requests.values())

    def take_requests(self) -> list[LiveRequest]:
        """Return what the engine had and had not ended, in the order of adding, and forget it."""
        requests = self.requests
        self._requests.clear()
        self._handles.clear()
        return requests

    def add(self, request: LiveRequest) -> None:
        """Send the request with the next frame; one that no message can hold fails by itself."""
        handle = next(self._next_handle)
        try:
            message = _add_message(handle, request)
        except (ValueError, TypeError) as exc:
            log.error("add_not_sendable", request_id=request.request.request_id, exc_info=exc)
            self._sink.forget(request)
            request.fail(InternalError("the request could not be sent to the engine"))
            return
        self._requests[handle] = request
        self._handles[request] = handle
        self._adds.append(message)
        self._outbox.set()

    def abort(self, request: LiveRequest, reason: AbortReason) -> None:
        """Forget the request, and have the scheduler end it if it has it; no-op if unknown."""
        handle = self._forget(request)
        if handle is None:
            return
        waiting = len(self._adds)
        self._adds = deque(add for add in self._adds if add.handle != handle)
        if len(self._adds) == waiting:
            self._aborts.append((handle, reason))
            self._outbox.set()

    async def _write_frames(self) -> None:
        while True:
            await self._outbox.wait()
            await self._write_outbox()

    async def _write_outbox(self) -> None:
        while self._adds or self._aborts:
            await self._write(scheduler_pb2.EngineStreamRequest(), fill=True)
        self._outbox.clear()

    async def _beat(self) -> None:
        await self._write(scheduler_pb2.EngineStreamRequest(heartbeat=self.pulse.beat()))

    async def _write(self, frame: scheduler_pb2.EngineStreamRequest, fill: bool = False) -> None:
        """Write one frame; the outbox is taken under the lock, so frames keep their order."""
        async with self._write_lock:
            if fill:
                self._fill(frame)
            frame.frame = next(self._frames)
            try:
                await self._call.write(frame)
            except asyncio.InvalidStateError:
                raise StreamLostError("the call has ended") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # Not this task was cancelled: the call, by `cancel`, while a goodbye was written.
                raise StreamLostError("the call has ended") from None

    def _fill(self, frame: scheduler_pb2.EngineStreamRequest) -> None:
        num_bytes = 0
        while self._adds and num_bytes < _MAX_FRAME_BYTES:
            add = self._adds.popleft()
            frame.adds.append(add)
            num_bytes += add.ByteSize()
        for handle, reason in self._aborts:
            frame.abort_handles.append(handle)
            frame.abort_reasons.append(_ABORT_REASONS[reason])
        self._aborts.clear()

    async def _read(self) -> scheduler_pb2.EngineStreamResponse:
        frame = await self._call.read()
        if frame is grpc.aio.EOF:
            raise StreamLostError("the scheduler ended the stream")
        if not isinstance(frame, scheduler_pb2.EngineStreamResponse):
            raise StreamLostError("not a frame")
        return frame

    async def _read_frames(self, watchdog: Watchdog) -> None:
        while True:
            frame = await self._read()
            watchdog.beat()
            self.num_frames += 1
            if frame.HasField("heartbeat"):
                self.pulse.take(frame.heartbeat)
            self._dispatch(frame)

    def _dispatch(self, frame: scheduler_pb2.EngineStreamResponse) -> None:
        for handle in frame.admitted_handles:
            if (request := self._requests.get(handle)) is not None:
                request.admit()
        if frame.HasField("draining"):
            log.info("engine_draining", deadline_ms=frame.draining.deadline_ms)
            self._note_draining()
        for error in frame.refusals:
            self._refuse(error)
        for error in frame.errors:
            self._fail(error)
        if frame.HasField("outputs"):
            self._take_outputs(frame.outputs)
        self._take_suspicions(frame)
        self._note_recovering(frame.recovering)

    def _note_recovering(self, is_recovering: bool) -> None:
        if is_recovering and not self.is_recovering:
            log.info("engine_recovering", num_requests=len(self._requests))
            for request in self._requests.values():
                request.trace.recovering()
        has_changed = is_recovering != self.is_recovering
        self.is_recovering = is_recovering
        if is_recovering or has_changed:
            self._owner.on_recovering()

    def _take_suspicions(self, frame: scheduler_pb2.EngineStreamResponse) -> None:
        for handle, count in _rows(frame.suspected_handles, frame.suspicion_counts):
            if (request := self._requests.get(handle)) is not None:
                request.num_suspicions = count
                request.trace.recovering()

    def _note_draining(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self._owner.on_draining()

    def _refuse(self, error: scheduler_pb2.RequestError) -> None:
        """Fail the request, unless it is the engine that goes away: then it can go elsewhere."""
        if error.reason != _DRAINING:
            self._fail(error)
            return
        self._note_draining()
        if (request := self._requests.get(error.handle)) is not None:
            self._forget(request)
            self._owner.take_back(request)

    def _fail(self, error: scheduler_pb2.RequestError) -> None:
        request = self._requests.get(error.handle)
        if request is None:
            return
        self._forget(request)
        self._sink.forget(request)
        request.fail(_to_error(error))

    def _take_outputs(self, outputs: scheduler_pb2.EngineOutputs) -> None:
        for handle, num_cached_tokens, queue_ns in _rows(
            outputs.scheduled_handles, outputs.num_cached_tokens, outputs.queue_ns
        ):
            if (request := self._requests.get(handle)) is not None:
                request.note_scheduled(num_cached_tokens, queue_ns / 1e9)
                request.trace.scheduled(queue_ns)
        for handle, prompt_logprobs in read_prompt_logprobs(outputs):
            if (request := self._requests.get(handle)) is not None:
                request.waiting_prompt_logprobs = prompt_logprobs
        moment = self._ledger.take(outputs.timings)
        self._trace_interruptions(outputs, moment)
        touched = dict.fromkeys(self._take_tokens(outputs, moment))
        touched.update(dict.fromkeys(self._take_finishes(outputs)))
        if touched:
            self._sink.push(list(touched))

    def _trace_interruptions(self, outputs: scheduler_pb2.EngineOutputs, moment: Moment) -> None:
        for handle in outputs.preempted_handles:
            if (request := self._requests.get(handle)) is not None:
                request.trace.preempted()
        for handle, count in _rows(outputs.prefill_handles, outputs.prefill_token_counts):
            if (request := self._requests.get(handle)) is not None:
                request.trace.prefilled(moment, count)

    def _take_tokens(
        self, outputs: scheduler_pb2.EngineOutputs, moment: Moment
    ) -> Iterable[LiveRequest]:
        token_ids = list(outputs.token_ids)  # cheaper to slice than the message's field
        self.num_tokens += len(token_ids)
        logprobs = read_output_logprobs(outputs)
        start = 0
        for handle, count in _rows(outputs.handles, outputs.token_counts):
            request = self._requests.get(handle)
            new_token_ids = token_ids[start : start + count]
            start += count
            # A row of a request that we have ended meanwhile is late, not wrong.
            if request is None:
                continue
            if request.add_tokens(new_token_ids, logprobs.get(handle)):
                request.trace.advanced(moment, count)
                yield request
            else:
                self._fail_without_logprobs(request)
        if start != len(token_ids):
            raise StreamLostError("token counts and token ids do not fit")

    def _fail_without_logprobs(self, request: LiveRequest) -> None:
        log.error("logprobs_missing", request_id=request.request.request_id)
        self.abort(request, AbortReason.CLIENT_GONE)
        self._sink.forget(request)
        request.fail(InternalError("the engine sent no logprobs", reason="ENGINE_ERROR"))

    def _take_finishes(self, outputs: scheduler_pb2.EngineOutputs) -> Iterable[LiveRequest]:
        for handle, reason, stop_plus_one in _rows(
            outputs.finished_handles, outputs.finish_reasons, outputs.stop_token_ids_plus_one
        ):
            request = self._requests.get(handle)
            if request is None:
                continue
            self._forget(request)
            finish_reason = _FINISH_REASONS.get(reason)
            if finish_reason is None or _is_past_deadline(request.request, finish_reason):
                self._sink.forget(request)
                request.fail(_finish_error(finish_reason))
                continue
            stop_token_id = stop_plus_one - 1 if stop_plus_one else None
            request.engine_finish = EngineFinish(finish_reason, stop_token_id)
            yield request

    def _forget(self, request: LiveRequest) -> int | None:
        handle = self._handles.pop(request, None)
        if handle is not None:
            del self._requests[handle]
        return handle


def _rows(*columns: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Walk columns side by side."""
    check_columns(*columns)
    return zip(*columns, strict=True)


def _add_message(handle: int, live: LiveRequest) -> scheduler_pb2.EngineAdd:
    request = live.request
    return scheduler_pb2.EngineAdd(
        handle=handle,
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=live.output_token_ids,
        sampling_params=sampling_params_to_proto(request.sampling_params),
        priority=request.priority,
        arrival_time_ns=request.arrival_time_ns,
        deadline_ns=request.deadline_ns,
        cache_salt=request.cache_salt,
        resumed=live.is_admitted,
        suspicions=live.num_suspicions,
        traceparent=request.traceparent,
    )


def _is_past_deadline(request: EngineRequest, reason: FinishReason) -> bool:
    return reason is FinishReason.ABORT and 0 < request.deadline_ns <= time.time_ns()


def _finish_error(reason: FinishReason | None) -> PagewireError:
    """Return the error that a finish stands for when it is no end of an output."""
    if reason is FinishReason.ABORT:
        return DeadlineExceededError("the request's deadline passed")
    return InternalError("the engine ended the request with an error", reason="ENGINE_ERROR")


def _to_error(error: scheduler_pb2.RequestError) -> PagewireError:
    return error_class(error.code)(
        error.message or "the engine failed the request",
        reason=error.reason or None,
        field=error.field or None,
        retry_after_s=error.retry_after_ms / 1000 if error.retry_after_ms else None,
    )
