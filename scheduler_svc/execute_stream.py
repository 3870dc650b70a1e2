"""One Execute stream to one worker: steps up, answers down, heartbeats both ways.

It lives as long as the lease that it was opened with. It knows what a lost stream looks like, and
nothing of how a worker is found or what comes after a loss: that is `worker_client`'s and
`engine_core`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from pagewire.kit.heartbeat import HEARTBEAT_TIMEOUT_S, Watchdog, send_heartbeats
from pagewire.kit.pulse import Pulse
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.executor import StepFailedError, WorkerLostError, WorkerUnavailableError
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.worker_messages import StepEncoder, decode_output, encode_masks

EXECUTE_TIMEOUT_S = 600.0
"""Longest step: a worker whose event loop lives but whose device hangs is lost too."""
CLOSE_TIMEOUT_S = 2.0


class _StreamBrokenError(Exception):
    """A frame could not be written."""


@dataclass(frozen=True, slots=True)
class _SentStep:
    """A step that was sent; `answer` is None once the stream is lost."""

    message: worker_pb2.SchedulerOutput
    output: SchedulerOutput
    answer: asyncio.Future[worker_pb2.ExecuteResponse | None]


class ExecuteStream:
    """One Execute stream: steps up, answers down, heartbeats both ways.

    Steps are answered in order; the caller bounds how many are under way. Three tasks belong to the
    stream: reader, heartbeats, watchdog. Whatever ends first makes it lost; `close` cancels and
    awaits them.
    """

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[worker_pb2.ExecuteRequest, worker_pb2.ExecuteResponse],
        lease: worker_pb2.Lease,
        on_lost: Callable[[], None],
        num_groups: int,
    ) -> None:
        self.lost_reason: str | None = None
        self._call = call
        self._lease = lease
        self._on_lost = on_lost
        self._encoder = StepEncoder(num_groups)
        self._watchdog = Watchdog(HEARTBEAT_TIMEOUT_S)
        self._frame = 0
        self.pulse = Pulse()
        # gRPC takes one write at a time; steps and heartbeats share the stream.
        self._write_lock = asyncio.Lock()
        self._sent: deque[_SentStep] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        stub: worker_pb2_grpc.WorkerServiceAsyncStub,
        lease: worker_pb2.Lease,
        on_lost: Callable[[], None],
        num_groups: int = 1,
        group_generation: int = 0,
    ) -> ExecuteStream:
        """Open the stream and wait until the worker accepted it.

        Args:
            stub: Of the worker.
            lease: That Initialize gave.
            on_lost: Called once when the stream is lost.
            num_groups: KV cache groups.
            group_generation: That Initialize was given.

        Raises:
            WorkerUnavailableError: It did not.
        """
        call = stub.Execute()
        stream = cls(call, lease, on_lost, num_groups)
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                opening = worker_pb2.ExecuteOpen(group_generation=group_generation)
                await stream._write(worker_pb2.ExecuteRequest(open=opening))
                first = await call.read()
            if not (isinstance(first, worker_pb2.ExecuteResponse) and first.HasField("accepted")):
                raise WorkerUnavailableError("it did not accept the Execute stream")
        except TimeoutError as error:
            call.cancel()
            raise WorkerUnavailableError("silent after Execute was opened") from error
        except _StreamBrokenError as error:
            call.cancel()
            raise WorkerUnavailableError("it refused the Execute stream") from error
        except BaseException:
            call.cancel()
            raise
        stream._start()
        return stream

    async def send(self, output: SchedulerOutput) -> None:
        """Send one step behind those under way."""
        if self.lost_reason is not None:
            raise WorkerLostError(self.lost_reason)
        step = self._encoder.encode(output)
        answer = asyncio.get_running_loop().create_future()
        self._sent.append(_SentStep(step, output, answer))
        await self._write_in_time(worker_pb2.ExecuteRequest(step=step))

    async def send_masks(self, output: SchedulerOutput, masks: Mapping[int, bytes]) -> None:
        """Send the grammar masks of a step that was sent and not received."""
        if self.lost_reason is not None:
            raise WorkerLostError(self.lost_reason)
        sent = next(sent for sent in self._sent if sent.output is output)
        message = encode_masks(masks, output, sent.message)
        await self._write_in_time(worker_pb2.ExecuteRequest(masks=message))

    async def receive(self) -> ModelRunnerOutput:
        """Wait for the answer to the oldest step that was not received; one caller at a time."""
        sent = self._sent[0]
        try:
            async with asyncio.timeout(EXECUTE_TIMEOUT_S):
                frame = await sent.answer
        except TimeoutError as error:
            self._lose(f"a step took more than {EXECUTE_TIMEOUT_S:.0f} s")
            raise WorkerLostError(self.lost_reason) from error
        if frame is None:
            raise WorkerLostError(self.lost_reason)
        self._sent.popleft()
        return self._decode(frame, sent)

    async def close(self) -> None:
        """Say goodbye if anybody listens, and end the tasks."""
        if self.lost_reason is None:
            with contextlib.suppress(TimeoutError, _StreamBrokenError, grpc.aio.AioRpcError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._write(worker_pb2.ExecuteRequest(close=worker_pb2.ExecuteClose()))
                    await self._call.done_writing()
                    await asyncio.wait(self._tasks[:1])
        await cancel_and_wait(*self._tasks)
        self._call.cancel()

    def _start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._read_answers(), name="execute-reader"),
            asyncio.create_task(self._send_heartbeats(), name="execute-heartbeats"),
            asyncio.create_task(self._watch(), name="execute-watchdog"),
        ]

    def _decode(self, answer: worker_pb2.ExecuteResponse, sent: _SentStep) -> ModelRunnerOutput:
        if answer.HasField("failed"):
            raise StepFailedError(f"{answer.failed.reason}: {answer.failed.message}")
        try:
            return decode_output(answer.output, sent.message, sent.output.step)
        except (ValueError, KeyError) as error:
            self._lose(f"its answer is malformed: {error}")
            raise WorkerLostError(self.lost_reason) from error

    async def _write_in_time(self, frame: worker_pb2.ExecuteRequest) -> None:
        try:
            async with asyncio.timeout(EXECUTE_TIMEOUT_S):
                await self._write(frame)
        except TimeoutError as error:
            self._lose(f"a step could not be written for {EXECUTE_TIMEOUT_S:.0f} s")
            raise WorkerLostError(self.lost_reason) from error
        except _StreamBrokenError as error:
            self._lose("the stream broke while a step was written")
            raise WorkerLostError(self.lost_reason) from error

    async def _write(self, frame: worker_pb2.ExecuteRequest) -> None:
        async with self._write_lock:
            self._frame += 1
            frame.frame = self._frame
            frame.lease.CopyFrom(self._lease)
            try:
                await self._call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                raise _StreamBrokenError from error
            except asyncio.CancelledError as error:
                # gRPC says so too when the call, not this task, was cancelled.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise _StreamBrokenError from error

    async def _read_answers(self) -> None:
        reason = "it ended the Execute stream"
        try:
            while isinstance(frame := await self._call.read(), worker_pb2.ExecuteResponse):
                self._watchdog.beat()
                if frame.HasField("heartbeat"):
                    self.pulse.take(frame.heartbeat)
                else:
                    self._take_answer(frame)
            reason = f"{reason} ({(await self._call.code()).name})"
        except grpc.aio.AioRpcError as error:
            reason = f"the Execute stream broke ({error.code().name})"
        finally:
            # Also when the call was cancelled under the reader: nobody reads answers any more.
            self._lose(reason)

    def _take_answer(self, frame: worker_pb2.ExecuteResponse) -> None:
        for sent in self._sent:
            if not sent.answer.done():
                sent.answer.set_result(frame)
                return

    async def _send_heartbeats(self) -> None:
        # The reader sees the broken stream too and says why.
        with contextlib.suppress(_StreamBrokenError):
            await send_heartbeats(self._send_heartbeat)

    async def _send_heartbeat(self) -> None:
        await self._write(worker_pb2.ExecuteRequest(heartbeat=self.pulse.beat()))

    async def _watch(self) -> None:
        silence_s = await self._watchdog.wait_expired()
        self._lose(f"silent for {silence_s:.0f} s")
        self._call.cancel()

    def _lose(self, reason: str) -> None:
        if self.lost_reason is not None:
            return
        self.lost_reason = reason
        for sent in self._sent:
            if not sent.answer.done():
                # Not as an exception, whose traceback would lead back here.
                sent.answer.set_result(None)
        self._on_lost()
