"""One Detokenize stream: reads frames, answers each in order, and keeps the peer's pulse.

Four tasks, owned and awaited by `serve`: the frames, our heartbeats, the watch over the peer's, and
the wait for the drain. The stream ends with the peer's close, with its end of stream, with silence,
or when the service drains and no frame is unanswered: whoever has requests open on it opens them on
another one and loses nothing. Knows nothing of how text is made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.kit.heartbeat import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Watchdog,
    send_heartbeats,
)
from pagewire.kit.pulse import Pulse
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import tokenizer_pb2
from tokenizer_svc.convert import answer_to_proto, frame_from_proto
from tokenizer_svc.detokenize_session import DetokenizeSession

Request = tokenizer_pb2.DetokenizeRequest
Response = tokenizer_pb2.DetokenizeResponse


class FrameChannel(Protocol):
    """The part of a gRPC context that a stream uses."""

    def read(self) -> Awaitable[Any]: ...

    def write(self, message: Response, /) -> Awaitable[None]: ...


class DetokenizeStream:
    """One stream; `serve` runs once."""

    def __init__(
        self,
        session: DetokenizeSession,
        channel: FrameChannel,
        draining: asyncio.Event,
        *,
        interval_s: float = HEARTBEAT_INTERVAL_S,
        timeout_s: float = HEARTBEAT_TIMEOUT_S,
        pulse: Pulse | None = None,
    ) -> None:
        self._session = session
        self._channel = channel
        self._draining = draining
        self._interval_s = interval_s
        self._watchdog = Watchdog(timeout_s)
        self._write_lock = asyncio.Lock()
        self._answered = asyncio.Event()
        self._answered.set()
        self._num_frames = 0
        self._pulse = pulse or Pulse()

    async def serve(self) -> None:
        """Run until the stream ends.

        Raises:
            InvalidRequestError: A frame is malformed.
            ServiceUnavailableError: The peer is silent, or the service drains.
        """
        works: list[Callable[[], Awaitable[None]]] = [
            self._take_frames,
            self._send_heartbeats,
            self._watch,
            self._wait_drained,
        ]
        tasks = [asyncio.ensure_future(work()) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [task for task in tasks if task.done()]
            await cancel_and_wait(*(task for task in tasks if not task.done()))
        for task in ended:
            task.result()

    async def _take_frames(self) -> None:
        while (message := await self._channel.read()) is not grpc.aio.EOF:
            self._watchdog.beat()
            if message.HasField("heartbeat"):
                self._pulse.take(message.heartbeat)
            if message.frame:
                await self._answer(message)
            elif message.opens or message.handles or message.closes:
                raise InvalidRequestError("rows need a frame number", field="frame")
            if message.close:
                return

    async def _answer(self, message: Request) -> None:
        self._num_frames += 1
        if message.frame != self._num_frames:
            raise InvalidRequestError(
                f"frame {message.frame} came where {self._num_frames} was due", field="frame"
            )
        self._answered.clear()
        begin_ns = time.monotonic_ns()
        answer = answer_to_proto(message.frame, await self._session.take(frame_from_proto(message)))
        answer.service_ns = time.monotonic_ns() - begin_ns
        await self._write(answer)
        # What the peer sent during a long frame has not been read yet.
        self._watchdog.beat()
        self._answered.set()

    async def _send_heartbeats(self) -> None:
        await send_heartbeats(self._beat, self._interval_s)

    async def _beat(self) -> None:
        await self._write(Response(heartbeat=self._pulse.beat()))

    async def _watch(self) -> None:
        silence_s = await self._watchdog.wait_expired()
        raise ServiceUnavailableError(
            f"no frame and no heartbeat for {silence_s:.0f} s", reason="PEER_SILENT"
        )

    async def _wait_drained(self) -> None:
        await self._draining.wait()
        await self._answered.wait()
        raise ServiceUnavailableError("the tokenizer service is draining", reason="DRAINING")

    async def _write(self, message: Response) -> None:
        # gRPC takes one write at a time.
        async with self._write_lock:
            await self._channel.write(message)
