"""One gateway's `EngineStream`: adds and aborts up, admission results and outputs down.

It keeps the handles and deadlines of the stream's requests and sees that everything of the stream
ends with it. It knows no scheduling; `gateway_outbox` writes, `engine_streams` knows the other
streams. All on one event loop: the engine calls `put_outputs` between its own awaits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from pagewire.kit.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.kit.heartbeat import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Watchdog,
    send_heartbeats,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.pulse import ProcessFigures, Pulse
from pagewire.kit.request_spans import RequestSpans
from pagewire.kit.spans import Spans
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.convert.outputs import end_attributes
from scheduler_svc.convert.requests import abort_stop, core_request
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.gateway_outbox import GatewayOutbox, Write
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason

MAX_PENDING_VALUES = 1 << 20
"""What may wait for a gateway that is slow to take the frame before it, in numbers: about 40 MB.

For any other four times as much: long prompts' log-probabilities may come before it has had time to
take a frame, or the writer its turn. What one step gives may pass both.
"""
SLOW_WRITE_S = 1.0
TAKEOVER_SILENCE_S = 2.5 * HEARTBEAT_INTERVAL_S
"""A gateway that was not heard for so long may have been started anew."""
FLUSH_TIMEOUT_S = 2.0

QUEUE_TIME = "gen_ai.latency.time_in_queue"
"""vLLM's name of the attribute."""

Frames = AsyncIterator[scheduler_pb2.EngineStreamRequest]

# The name that these lines have always had.
log = get_logger("scheduler_svc.engine_stream")


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
        self._outbox = GatewayOutbox()
        self._spans = RequestSpans(spans, "scheduler.request")
        self._pulse = Pulse(process)
        self._error: PagewireError | None = None
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

    def accept(self, scheduler_id: str, epoch: int, fingerprint: str) -> None:
        """Put the answer to `open` into the first frame."""
        self._outbox.accept(scheduler_id, epoch, fingerprint)

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
        writer = asyncio.create_task(self._outbox.write_frames(write), name="engine-stream-writer")
        tasks = (
            writer,
            asyncio.create_task(self._read(frames), name="engine-stream-reader"),
            asyncio.create_task(self._ended.wait(), name="engine-stream-end"),
            asyncio.create_task(send_heartbeats(self._beat), name="engine-stream-heartbeats"),
            asyncio.create_task(_expire(self._watchdog), name="engine-stream-watchdog"),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set():
                # What is still to be said gets a bounded time, also if a write hangs now.
                await asyncio.wait((writer,), timeout=FLUSH_TIMEOUT_S)
            failure = _failure_of(done)
        finally:
            await cancel_and_wait(*tasks)
            log.info("gateway_disconnected", gateway_id=self._opened.gateway_id)
        # What is raised leads back to this frame, which must not lead to it.
        del tasks, done, writer
        try:
            if failure is not None:
                raise failure
        finally:
            del failure
        if self._error is not None:
            raise self._take_error(self._error)

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
            self._outbox.admit(handle)

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        if self._is_over():
            return
        self._outbox.add_step(outputs, timings, self._handles)
        for item in outputs.scheduled:
            self._spans.note(item.request_id, {QUEUE_TIME: item.queued_time_s})
        self.put_finished(outputs.finished)

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        for end in finished:
            is_admitted = self._handles.get(end.request_id) not in self._unadmitted
            self._spans.note(end.request_id, end_attributes(end))
            handle = self._forget(end.request_id)
            if handle is None:
                continue
            if end.reason is FinishReason.ERROR:
                self._outbox.fail(handle, end.error(), is_admitted=is_admitted)
            else:
                self._outbox.add_finished(handle, end)

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        for request_id, count in counts.items():
            handle = self._handles.get(request_id)
            if handle is not None:
                self._outbox.suspect(handle, count)

    def set_recovering(self, recovering: bool) -> None:
        self._outbox.set_recovering(recovering)

    def set_draining(self, deadline_s: float) -> None:
        self._outbox.set_draining(deadline_s)

    def end(self, error: PagewireError) -> None:
        if not self._ended.is_set():
            self._error = error
        self._ended.set()
        self._outbox.close()

    def _is_over(self) -> bool:
        """Whether nothing more may be put: the stream ends, if only because too much waits."""
        num_values, limit = self._outbox.num_values, MAX_PENDING_VALUES
        is_slow = num_values > limit and self._outbox.is_writing_for(SLOW_WRITE_S)
        if is_slow or num_values > 4 * limit:
            self.end(ServiceUnavailableError("the gateway reads too slowly", reason="SLOW_GATEWAY"))
        return self._ended.is_set()

    def _take_error(self, error: PagewireError) -> PagewireError:
        """Let go of the error that is to be raised: its traceback will lead back here."""
        self._error = None
        return error

    # Up.

    async def _read(self, frames: Frames) -> None:
        async for frame in frames:
            self._watchdog.beat()
            if frame.HasField("heartbeat"):
                self._pulse.take(frame.heartbeat)
            # Ends first: a handle may be used again in the same frame.
            self._abort(frame)
            for add in frame.adds:
                if self._is_over():
                    return
                self._add(add)
            if frame.close:
                return

    def _add(self, add: scheduler_pb2.EngineAdd) -> None:
        try:
            if add.handle in self._requests:
                raise InvalidRequestError("the handle is in use", reason="HANDLE_IN_USE")
            if 0 < add.deadline_ns <= time.time_ns():
                raise DeadlineExceededError("the request's deadline passed before it came")
            is_admitted = self._core.add_request(core_request(add, self._client_id))
        except PagewireError as error:
            self._outbox.fail(add.handle, error, is_admitted=False)
            return
        self._handles[add.request_id] = add.handle
        self._requests[add.handle] = add.request_id
        self._spans.begin(add.request_id, add.traceparent, add.request_id)
        self._set_deadline(add)
        if is_admitted:
            self._outbox.admit(add.handle)
        else:
            self._unadmitted.add(add.handle)

    def _abort(self, frame: scheduler_pb2.EngineStreamRequest) -> None:
        for index, handle in enumerate(frame.abort_handles):
            request_id = self._requests.get(handle)
            if request_id is not None:
                reasons = frame.abort_reasons
                reason = (
                    reasons[index] if index < len(reasons) else common_pb2.ABORT_REASON_UNSPECIFIED
                )
                self._core.finish_requests([request_id], abort_stop(reason))

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
            self._outbox.fail(handle, error, is_admitted=is_admitted)

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

    async def _beat(self) -> None:
        self._outbox.set_heartbeat(self._pulse.beat())


def _failure_of(done: Iterable[asyncio.Task[Any]]) -> BaseException | None:
    """Return what the first of the tasks that failed has raised."""
    return next((failure for task in done if (failure := task.exception()) is not None), None)


async def _expire(watchdog: Watchdog) -> None:
    silence_s = await watchdog.wait_expired()
    raise DeadlineExceededError(f"the gateway was silent for {silence_s:.0f} s", reason="SILENT")
