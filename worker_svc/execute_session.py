"""One Execute stream: frames in, outcomes out in order, heartbeats, and every way it can end.

Owns the stream's tasks and its bounded queues. Knows no protobuf (`convert` makes the frames, the
servicer sends the answers) and no device: it submits steps to the `Execution` that the worker
gave. All tasks live inside `run` and have ended when it returns.

Ways to end: a close frame (every queued step is answered first), end of the frames without one,
silence, a frame that breaks the protocol, the worker's own wish (the step in flight is answered
first), or cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from pagewire.kit.errors import InvalidRequestError, PagewireError, ServiceUnavailableError
from pagewire.kit.heartbeat import HEARTBEAT_INTERVAL_S, Watchdog, send_heartbeats
from pagewire.kit.logs import get_logger
from pagewire.kit.pulse import Heartbeat, Pulse
from pagewire.kit.tasks import cancel_and_wait
from worker_svc.execution import MAX_QUEUED_STEPS, Execution, StepOutcome
from worker_svc.grammar_masks import GrammarMasks
from worker_svc.lease import Lease
from worker_svc.step import SchedulerOutput

log = get_logger("worker_svc.execute_session")

# Outcomes that the peer has not read yet, besides those it reads right now.
_MAX_UNSENT = 2 * MAX_QUEUED_STEPS


@dataclass(frozen=True, slots=True)
class OpenFrame:
    """The first frame of a stream."""

    group_generation: int


@dataclass(frozen=True, slots=True)
class StepFrame:
    """A step to run."""

    step: SchedulerOutput


@dataclass(frozen=True, slots=True)
class BadStepFrame:
    """A step that cannot be read; `step` has its number and the handles it names."""

    step: SchedulerOutput
    error: PagewireError


@dataclass(frozen=True, slots=True)
class MasksFrame:
    """Grammar masks of a step."""

    masks: GrammarMasks


@dataclass(frozen=True, slots=True)
class HeartbeatFrame:
    """Proof of life."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class CloseFrame:
    """A clean end."""


Payload = OpenFrame | StepFrame | BadStepFrame | MasksFrame | HeartbeatFrame | CloseFrame


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame from the scheduler."""

    number: int
    lease: Lease
    payload: Payload


@dataclass(frozen=True, slots=True)
class Accepted:
    """The first answer."""

    worker_epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Proof of life of the worker."""

    heartbeat: Heartbeat


Answer = Accepted | StepOutcome | HeartbeatAnswer


class _DrainedError(Exception):
    """Everything that was due has been sent."""


class ExecuteSession:
    """Runs one stream on an `Execution`, after its open frame."""

    def __init__(
        self,
        execution: Execution,
        worker_epoch: int,
        timeout_s: float,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        pulse: Pulse | None = None,
    ) -> None:
        self._execution = execution
        self._worker_epoch = worker_epoch
        self._timeout_s = timeout_s
        self._heartbeat_interval_s = heartbeat_interval_s
        self._last_frame = 1
        self._last_step = 0
        self._pulse = pulse or Pulse()
        # None: nothing follows.
        self._due: asyncio.Queue[asyncio.Future[StepOutcome] | None] = asyncio.Queue()
        self._unsent: asyncio.Queue[Answer | None] = asyncio.Queue(_MAX_UNSENT)
        self._stopped: PagewireError | None = None

    async def run(
        self, frames: AsyncIterator[Frame], send: Callable[[Answer], Awaitable[None]]
    ) -> None:
        """Serve the stream to its end; returns normally after a close frame only.

        Raises:
            PagewireError: The stream ended in another way.
        """
        watchdog = Watchdog(self._timeout_s)
        parts = {
            "send": self._send_answers(send),
            "read": self._read_frames(frames, watchdog),
            "outcomes": self._collect_outcomes(),
            "heartbeat": self._beat(),
            "watchdog": self._watch(watchdog),
            "stop": self._wait_stopped(),
        }
        tasks = [asyncio.create_task(part, name=f"execute-{name}") for name, part in parts.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await cancel_and_wait(*(task for task in tasks if not task.done()))
        end = _first_failure(done)
        # What is raised leads back to this frame, which must not lead to it.
        del tasks, done
        try:
            if not isinstance(end, _DrainedError):
                raise end
        finally:
            del end
        if self._stopped is not None:
            raise self._take_stopped(self._stopped)

    def _take_stopped(self, stopped: PagewireError) -> PagewireError:
        """Return it to be raised, with a traceback that leads to this object, which forgets it."""
        self._stopped = None
        return stopped

    async def _read_frames(self, frames: AsyncIterator[Frame], watchdog: Watchdog) -> None:
        async for frame in frames:
            watchdog.beat()
            self._check(frame)
            if isinstance(frame.payload, CloseFrame):
                self._execution.end_masks()
                self._due.put_nowait(None)
                return
            self._handle(frame.payload)
        # A cancelled call reads like this as well: nothing is committed here.
        raise ServiceUnavailableError("the stream ended without a close", reason="STREAM_LOST")

    def _check(self, frame: Frame) -> None:
        if frame.number != self._last_frame + 1:
            message = f"frame {frame.number} follows frame {self._last_frame}"
            raise InvalidRequestError(message, reason="FRAME_OUT_OF_ORDER", field="frame")
        self._last_frame = frame.number
        if frame.lease != self._execution.lease:
            message = "the frame's lease is not that of the stream"
            raise InvalidRequestError(message, reason="LEASE_MISMATCH", field="lease")

    def _handle(self, payload: Payload) -> None:
        if isinstance(payload, StepFrame | BadStepFrame):
            self._submit(payload)
        elif isinstance(payload, OpenFrame):
            raise InvalidRequestError("the stream is open already", reason="WRONG_ORDER")
        elif isinstance(payload, MasksFrame):
            self._execution.put_masks(payload.masks)
        elif isinstance(payload, HeartbeatFrame):
            self._pulse.take(payload.heartbeat)

    def _submit(self, payload: StepFrame | BadStepFrame) -> None:
        number = payload.step.step
        if number != self._last_step + 1:
            message = f"step {number} follows step {self._last_step}"
            raise InvalidRequestError(message, reason="STEP_OUT_OF_ORDER", field="step.step")
        self._last_step = number
        if self._stopped is not None:
            return
        if self._due.qsize() + self._unsent.qsize() >= _MAX_UNSENT:
            message = "the answers to earlier steps are not being read"
            raise InvalidRequestError(message, reason="TOO_MANY_STEPS")
        if isinstance(payload, StepFrame):
            self._due.put_nowait(self._execution.submit(payload.step))
        else:
            self._due.put_nowait(self._execution.submit_rejected(payload.step, payload.error))

    async def _collect_outcomes(self) -> None:
        """Pass outcomes on in the order of their steps."""
        while (future := await self._due.get()) is not None:
            await asyncio.wait({future})
            if not future.cancelled():  # else dropped, because the stream is to end
                await self._unsent.put(future.result())
        await self._unsent.put(None)

    async def _send_answers(self, send: Callable[[Answer], Awaitable[None]]) -> None:
        await send(Accepted(self._worker_epoch))
        while (answer := await self._unsent.get()) is not None:
            await send(answer)
        raise _DrainedError

    async def _beat(self) -> None:
        await send_heartbeats(self._queue_heartbeat, self._heartbeat_interval_s)

    async def _queue_heartbeat(self) -> None:
        if self._unsent.empty():  # what waits to be sent proves life as well
            self._unsent.put_nowait(HeartbeatAnswer(self._pulse.beat()))

    async def _watch(self, watchdog: Watchdog) -> None:
        silence_s = await watchdog.wait_expired()
        log.warning("scheduler_silent", silence_s=round(silence_s, 3))
        message = f"no frame for {silence_s:.1f} s: the lease has ended"
        raise ServiceUnavailableError(message, reason="LEASE_EXPIRED")

    async def _wait_stopped(self) -> None:
        await self._execution.stop.wait()
        self._stopped = ServiceUnavailableError(
            "the worker ends this stream", reason="STREAM_ENDED_BY_WORKER"
        )
        self._execution.keep_first()
        self._due.put_nowait(None)


def _first_failure(done: Iterable[asyncio.Task[None]]) -> BaseException:
    """The exception that says most: a bug, then an error of the stream, then its orderly end."""

    def rank(error: BaseException) -> int:
        return 2 if isinstance(error, _DrainedError) else int(isinstance(error, PagewireError))

    failures = [error for task in done if (error := task.exception()) is not None]
    return min(failures, key=rank)
