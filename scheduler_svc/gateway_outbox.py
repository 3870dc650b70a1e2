"""What waits to be written to one gateway: the next frame of its `EngineStream`.

Whatever can't be written yet merges into one frame. It counts how much that is and writes frames
one at a time; it knows no request and no engine, and judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from pagewire.kit.errors import PagewireError
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.convert.pending_outputs import PendingOutputs
from scheduler_svc.convert.requests import request_error
from scheduler_svc.step_figures import StepTimings

_ERROR_VALUES = 32

Write = Callable[[scheduler_pb2.EngineStreamResponse], Awaitable[None]]


class GatewayOutbox:
    """The frame that is put together, and the task that writes it.

    One producer's loop puts and `write_frames` takes, both on one event loop. Nothing is dropped,
    so whoever puts looks at `num_values` and stops in time.
    """

    def __init__(self) -> None:
        self._frame = scheduler_pb2.EngineStreamResponse()
        self._outputs = PendingOutputs()
        self._num_frame_values = 0
        self._has_frame = False
        self._is_recovering = False
        self._is_closed = False
        self._num_frames = 0
        self._last_answered_ns = 0
        self._write_began_s: float | None = None
        self._wake = asyncio.Event()

    @property
    def num_values(self) -> int:
        """How much waits, in numbers of columns: about 40 bytes each here, up to 5 on the wire."""
        return self._outputs.num_values + self._num_frame_values

    def is_writing_for(self, seconds: float) -> bool:
        """Whether a write is under way, and has been for so long."""
        began_s = self._write_began_s
        return began_s is not None and asyncio.get_running_loop().time() - began_s >= seconds

    def accept(self, scheduler_id: str, epoch: int, fingerprint: str) -> None:
        """Put the answer to `open` in; it must be in the first frame."""
        self._frame.accepted.scheduler_id = scheduler_id
        self._frame.accepted.epoch = epoch
        self._frame.accepted.engine_fingerprint = fingerprint
        self._touch()

    def admit(self, handle: int) -> None:
        """Say that a request was taken."""
        self._frame.admitted_handles.append(handle)
        self._num_frame_values += 1
        self._touch()

    def fail(self, handle: int, error: PagewireError, *, is_admitted: bool) -> None:
        """Say why a request ends; before its admission that is a refusal."""
        where = self._frame.errors if is_admitted else self._frame.refusals
        where.append(request_error(handle, error))
        self._num_frame_values += _ERROR_VALUES
        self._touch()

    def suspect(self, handle: int, count: int) -> None:
        """Say how often a request has been suspected by now."""
        self._frame.suspected_handles.append(handle)
        self._frame.suspicion_counts.append(count)
        self._num_frame_values += 2
        self._touch()

    def add_step(
        self, outputs: EngineCoreOutputs, timings: StepTimings, handles: Mapping[str, int]
    ) -> None:
        """Take in what a step gave, but for the ends of requests."""
        self._outputs.add_step(outputs, timings, handles)
        self._touch()

    def add_finished(self, handle: int, end: FinishedRequest) -> None:
        """Say that a request ended well, or was aborted."""
        self._outputs.add_finished(handle, end)
        self._touch()

    def set_recovering(self, recovering: bool) -> None:
        self._is_recovering = recovering
        self._touch()

    def set_draining(self, deadline_s: float) -> None:
        self._frame.draining.deadline_ms = round(deadline_s * 1000)
        self._touch()

    def set_heartbeat(self, heartbeat: common_pb2.Heartbeat) -> None:
        self._frame.heartbeat.CopyFrom(heartbeat)
        self._touch()

    def close(self) -> None:
        """Let `write_frames` return as soon as what waits is written."""
        self._is_closed = True
        self._wake.set()

    async def write_frames(self, write: Write) -> None:
        """Write one frame at a time, until closed; what comes meanwhile merges into the next."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._has_frame:
                frame = self._take_frame()
                self._write_began_s = asyncio.get_running_loop().time()
                await write(frame)
                self._write_began_s = None
            elif self._is_closed:
                return
            if self._is_closed:
                self._wake.set()

    def _take_frame(self) -> scheduler_pb2.EngineStreamResponse:
        frame, self._frame = self._frame, scheduler_pb2.EngineStreamResponse()
        self._has_frame, self._num_frame_values = False, 0
        outputs, self._outputs = self._outputs, PendingOutputs()
        self._num_frames += 1
        frame.frame = self._num_frames
        frame.recovering = self._is_recovering
        if outputs:
            frame.outputs.CopyFrom(outputs.to_proto(self._last_answered_ns))
            self._last_answered_ns = outputs.timings.answered_ns or self._last_answered_ns
        return frame

    def _touch(self) -> None:
        self._has_frame = True
        self._wake.set()
