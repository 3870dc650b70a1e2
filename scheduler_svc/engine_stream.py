"""One gateway's `EngineStream`: adds and aborts up, admission results and outputs down.

`EngineStreams` knows which stream is each gateway's newest; `GatewaySession` is one stream. It
keeps the handles, merges what can't be written yet into the next frame, and sees that everything
of the stream ends with it. It knows no scheduling. All on one event loop: the engine calls
`put_outputs` between its own awaits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from pagewire.kit.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidRequestError,
    PagewireError,
    QueueFullError,
    ServiceUnavailableError,
)
from pagewire.kit.heartbeat import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Watchdog,
    send_heartbeats,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.pulse import ProcessFigures, Pulse, no_figures
from pagewire.kit.request_spans import RequestSpans
from pagewire.kit.spans import NO_SPANS, Spans
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc import convert
from scheduler_svc.bounds import MAX_GATEWAYS
from scheduler_svc.convert import PendingOutputs
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.output import EngineCoreOutputs, FinishedRequest, StepTimings
from scheduler_svc.stop import FinishReason

MAX_PENDING_TOKENS = 262_144
"""Unwritten output tokens after which a gateway counts as lost."""
TAKEOVER_SILENCE_S = 2.5 * HEARTBEAT_INTERVAL_S
"""A gateway that was not heard for so long may have been started anew."""
FLUSH_TIMEOUT_S = 2.0

QUEUE_TIME = "gen_ai.latency.time_in_queue"
"""vLLM's name of the attribute."""

Write = Callable[[scheduler_pb2.EngineStreamResponse], Awaitable[None]]
Frames = AsyncIterator[scheduler_pb2.EngineStreamRequest]

log = get_logger("scheduler_svc.engine_stream")


@dataclass(frozen=True, slots=True)
class SchedulerIdentity:
    """Which scheduler process this is."""

    scheduler_id: str
    epoch: int
    """Random, new at each start of the process."""


class EngineStreams:
    """The newest stream of each gateway."""

    def __init__(
        self,
        core: EngineCore,
        identity: SchedulerIdentity,
        process: Callable[[], ProcessFigures | None] = no_figures,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._core = core
        self._spans = spans
        self._identity = identity
        self._process = process
        self._sessions: dict[str, GatewaySession] = {}

    async def serve(self, frames: Frames, write: Write) -> None:
        """Carry one stream from its first frame to its end; nothing of it is left afterwards.

        Raises:
            PagewireError: Why the stream ended, unless the gateway ended it.
        """
        opened = await _read_open(frames)
        info = self._core.require_info()
        session = self._open(opened)
        session.accept(self._identity, info.fingerprint)
        try:
            await session.run(frames, write)
        finally:
            session.abort_all()
            if self._sessions.get(opened.gateway_id) is session:
                del self._sessions[opened.gateway_id]

    def _open(self, opened: scheduler_pb2.EngineStreamOpen) -> GatewaySession:
        """Replace the gateway's earlier stream, whose requests end before this one adds any.

        Raises:
            FailedPreconditionError: The gateway has a newer stream, or another process its id.
            QueueFullError: Too many gateways.
        """
        earlier = self._sessions.get(opened.gateway_id)
        if earlier is not None:
            if earlier.is_newer_than(opened):
                raise FailedPreconditionError(
                    "this gateway has a newer stream", reason="STALE_GENERATION"
                )
            if earlier.is_in_use_by_another(opened):
                raise FailedPreconditionError(
                    f"another gateway that runs has the id {opened.gateway_id!r}: give each one its"
                    " own --gateway-id, or none",
                    reason="GATEWAY_ID_TAKEN",
                    field="gateway_id",
                )
            earlier.abort_all()
            earlier.end(FailedPreconditionError("a newer stream took over", reason="SUPERSEDED"))
        elif len(self._sessions) >= MAX_GATEWAYS:
            raise QueueFullError(
                f"{MAX_GATEWAYS} gateways are connected", reason="TOO_MANY_GATEWAYS"
            )
        session = self._sessions[opened.gateway_id] = GatewaySession(
            self._core, opened, self._process, self._spans
        )
        return session


class GatewaySession:
    """One stream; an `OutputSink` of the engine.

    Invariant: `_handles` and `_requests` map the same live requests both ways. Tasks that work
    while `run` does: reader, writer, heartbeats, watchdog; the first to end ends the stream.
    """

    def __init__(
        self,
        core: EngineCore,
        opened: scheduler_pb2.EngineStreamOpen,
        process: Callable[[], ProcessFigures | None],
        spans: Spans,
    ) -> None:
        self._core = core
        self._opened = opened
        self._handles: dict[str, int] = {}
        self._requests: dict[int, str] = {}
        self._unadmitted: set[int] = set()
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._outputs = PendingOutputs()
        self._last_answered_ns = 0
        self._spans = RequestSpans(spans, "scheduler.request")
        self._frame = scheduler_pb2.EngineStreamResponse()
        self._has_frame = False
        self._is_recovering = False
        self._num_frames = 0
        self._pulse = Pulse(process)
        self._wake = asyncio.Event()
        self._end_error: PagewireError | None = None
        self._ended = asyncio.Event()
        self._watchdog = Watchdog(HEARTBEAT_TIMEOUT_S)
        self._client_id = core.attach(self)

    def is_newer_than(self, opened: scheduler_pb2.EngineStreamOpen) -> bool:
        """Whether `opened` comes late."""
        mine = self._opened
        return mine.gateway_epoch == opened.gateway_epoch and mine.generation >= opened.generation

    def is_in_use_by_another(self, opened: scheduler_pb2.EngineStreamOpen) -> bool:
        """Whether `opened` is of another process while this stream's own one was heard lately.

        Two processes with one id would else end each other's streams for ever. One that was started
        anew finds the stream of the earlier one broken, or silent.
        """
        is_another = self._opened.gateway_epoch != opened.gateway_epoch
        return is_another and self._watchdog.silence_s < TAKEOVER_SILENCE_S

    def accept(self, identity: SchedulerIdentity, fingerprint: str) -> None:
        """Put the answer to `open` into the first frame."""
        self._frame.accepted.scheduler_id = identity.scheduler_id
        self._frame.accepted.epoch = identity.epoch
        self._frame.accepted.engine_fingerprint = fingerprint
        self._touch()

    async def run(self, frames: Frames, write: Write) -> None:
        """Carry frames both ways until one side ends it.

        Raises:
            PagewireError: Why, unless the gateway ended it.
        """
        log.info(
            "gateway_connected",
            gateway_id=self._opened.gateway_id,
            generation=self._opened.generation,
        )
        reader = asyncio.create_task(self._read(frames), name="engine-stream-reader")
        writer = asyncio.create_task(self._write_frames(write), name="engine-stream-writer")
        others = (
            asyncio.create_task(self._ended.wait(), name="engine-stream-end"),
            asyncio.create_task(send_heartbeats(self._beat), name="engine-stream-heartbeats"),
            asyncio.create_task(_expire(self._watchdog), name="engine-stream-watchdog"),
        )
        tasks = (reader, writer, *others)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._end_error is not None:
                # What is still to be said gets a bounded time, also if a write hangs now.
                await asyncio.wait((writer,), timeout=FLUSH_TIMEOUT_S)
            for task in done:
                task.result()
            if self._end_error is not None:
                raise self._end_error
        finally:
            await cancel_and_wait(*tasks)
            log.info("gateway_disconnected", gateway_id=self._opened.gateway_id)

    def abort_all(self) -> None:
        """End every request of this stream without a word; idempotent."""
        request_ids = list(self._handles)
        self._handles.clear()
        self._requests.clear()
        self._unadmitted.clear()
        for timer in self._deadlines.values():
            timer.cancel()
        self._deadlines.clear()
        self._spans.end_all()
        self._core.detach(self._client_id, request_ids)

    # OutputSink.

    def put_admitted(self, request_id: str) -> None:
        handle = self._handles.get(request_id)
        if handle is not None:
            self._unadmitted.discard(handle)
            self._frame.admitted_handles.append(handle)
            self._touch()

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        self._outputs.add_step(outputs, timings, self._handles)
        for item in outputs.scheduled:
            self._spans.note(item.request_id, {QUEUE_TIME: item.queued_time_s})
        self.put_finished(outputs.finished)
        if self._outputs.num_tokens > MAX_PENDING_TOKENS:
            self.end(ServiceUnavailableError("the gateway reads too slowly", reason="SLOW_GATEWAY"))

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for end in finished:
            is_admitted = self._handles.get(end.request_id) not in self._unadmitted
            self._spans.note(end.request_id, convert.end_attributes(end))
            handle = self._forget(end.request_id)
            if handle is None:
                continue
            if end.reason is FinishReason.ERROR:
                self._put_error(handle, end.error(), is_admitted=is_admitted)
            else:
                self._outputs.add_finished(handle, end)
        self._touch()

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        for request_id, count in counts.items():
            handle = self._handles.get(request_id)
            if handle is not None:
                self._frame.suspected_handles.append(handle)
                self._frame.suspicion_counts.append(count)
        self._touch()

    def set_recovering(self, recovering: bool) -> None:
        self._is_recovering = recovering
        self._touch()

    def set_draining(self, deadline_s: float) -> None:
        self._frame.draining.deadline_ms = round(deadline_s * 1000)
        self._touch()

    def end(self, error: PagewireError) -> None:
        if self._end_error is None:
            self._end_error = error
        self._ended.set()
        self._wake.set()

    # Up.

    async def _read(self, frames: Frames) -> None:
        async for frame in frames:
            self._watchdog.beat()
            if frame.HasField("heartbeat"):
                self._pulse.take(frame.heartbeat)
            # Ends first: a handle may be used again in the same frame.
            self._abort(frame)
            for add in frame.adds:
                self._add(add)
            if frame.close:
                return

    def _add(self, add: scheduler_pb2.EngineAdd) -> None:
        try:
            if add.handle in self._requests:
                raise InvalidRequestError("the handle is in use", reason="HANDLE_IN_USE")
            if 0 < add.deadline_ns <= time.time_ns():
                raise DeadlineExceededError("the request's deadline passed before it came")
            is_admitted = self._core.add_request(convert.core_request(add, self._client_id))
        except PagewireError as error:
            self._put_error(add.handle, error, is_admitted=False)
        else:
            self._handles[add.request_id] = add.handle
            self._requests[add.handle] = add.request_id
            self._spans.begin(add.request_id, add.traceparent, add.request_id)
            self._set_deadline(add)
            if is_admitted:
                self._frame.admitted_handles.append(add.handle)
            else:
                self._unadmitted.add(add.handle)
        self._touch()

    def _put_error(self, handle: int, error: PagewireError, *, is_admitted: bool) -> None:
        """Say why a request ends; before its admission that is a refusal."""
        where = self._frame.errors if is_admitted else self._frame.refusals
        where.append(convert.request_error(handle, error))

    def _abort(self, frame: scheduler_pb2.EngineStreamRequest) -> None:
        for index, handle in enumerate(frame.abort_handles):
            request_id = self._requests.get(handle)
            if request_id is not None:
                reasons = frame.abort_reasons
                reason = (
                    reasons[index] if index < len(reasons) else common_pb2.ABORT_REASON_UNSPECIFIED
                )
                self._core.finish_requests([request_id], convert.abort_stop(reason))

    def _set_deadline(self, add: scheduler_pb2.EngineAdd) -> None:
        if add.deadline_ns:
            delay_s = (add.deadline_ns - time.time_ns()) / 1e9
            loop = asyncio.get_running_loop()
            self._deadlines[add.request_id] = loop.call_later(
                max(delay_s, 0.0), self._on_deadline, add.request_id
            )

    def _on_deadline(self, request_id: str) -> None:
        is_admitted = self._handles.get(request_id) not in self._unadmitted
        handle = self._forget(request_id)
        if handle is not None:
            self._core.finish_requests([request_id])
            error = DeadlineExceededError("the request's deadline passed")
            self._put_error(handle, error, is_admitted=is_admitted)
            self._touch()

    def _forget(self, request_id: str) -> int | None:
        handle = self._handles.pop(request_id, None)
        if handle is not None:
            del self._requests[handle]
            self._unadmitted.discard(handle)
            self._spans.end(request_id)
        timer = self._deadlines.pop(request_id, None)
        if timer is not None:
            timer.cancel()
        return handle

    # Down.

    async def _write_frames(self, write: Write) -> None:
        """Write one frame at a time; what comes meanwhile merges into the next."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._has_frame:
                await write(self._take_frame())
            elif self._end_error is not None:
                return
            if self._end_error is not None:
                self._wake.set()

    def _take_frame(self) -> scheduler_pb2.EngineStreamResponse:
        frame, self._frame = self._frame, scheduler_pb2.EngineStreamResponse()
        self._has_frame = False
        outputs, self._outputs = self._outputs, PendingOutputs()
        self._num_frames += 1
        frame.frame = self._num_frames
        frame.recovering = self._is_recovering
        if outputs:
            frame.outputs.CopyFrom(outputs.to_proto(self._last_answered_ns))
            self._last_answered_ns = outputs.timings.answered_ns or self._last_answered_ns
        return frame

    async def _beat(self) -> None:
        self._frame.heartbeat.CopyFrom(self._pulse.beat())
        self._touch()

    def _touch(self) -> None:
        self._has_frame = True
        self._wake.set()


async def _read_open(frames: Frames) -> scheduler_pb2.EngineStreamOpen:
    try:
        async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
            first = await anext(frames, None)
    except TimeoutError as error:
        raise DeadlineExceededError("the first frame did not come") from error
    if first is None or not first.HasField("open") or not first.open.gateway_id:
        raise InvalidRequestError(
            "the first frame must have `open` with a gateway_id", reason="NOT_OPENED", field="open"
        )
    return first.open


async def _expire(watchdog: Watchdog) -> None:
    silence_s = await watchdog.wait_expired()
    raise DeadlineExceededError(f"the gateway was silent for {silence_s:.0f} s", reason="SILENT")
