"""The stream's own life, on a channel of queues; what goes over gRPC is in test_servicer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.v1 import common_pb2, tokenizer_pb2
from tokenizer_svc.detokenize_session import DetokenizeSession
from tokenizer_svc.detokenize_stream import DetokenizeStream
from tokenizer_svc.model_tokenizer import ModelTokenizer

FOREVER_S = 1e6


class Channel:
    """Both ends of a stream."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.on_read: Callable[[], None] = lambda: None

    async def read(self) -> Any:
        message = await self.incoming.get()
        self.on_read()
        return message

    async def write(self, message: Any) -> None:
        await self.outgoing.put(message)


class Running:
    """A stream that serves in a task."""

    def __init__(self, model: ModelTokenizer, interval_s: float, timeout_s: float) -> None:
        self.channel = Channel()
        self.draining = asyncio.Event()
        stream = DetokenizeStream(
            DetokenizeSession(model),
            self.channel,
            self.draining,
            interval_s=interval_s,
            timeout_s=timeout_s,
        )
        self.task = asyncio.ensure_future(stream.serve())

    async def send(self, **fields: Any) -> Any:
        self.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(**fields))
        return await self.channel.outgoing.get()


def start(
    model: ModelTokenizer, interval_s: float = FOREVER_S, timeout_s: float = FOREVER_S
) -> Running:
    return Running(model, interval_s, timeout_s)


async def test_a_close_ends_the_stream(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    assert (await stream.send(frame=1)).frame == 1
    stream.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(close=True))
    await stream.task


async def test_a_frame_that_closes_is_answered_first(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    assert (await stream.send(frame=1, close=True)).frame == 1
    await stream.task


async def test_the_end_of_the_peers_stream_ends_it(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    stream.channel.incoming.put_nowait(grpc.aio.EOF)
    await stream.task


async def test_heartbeats_are_numbered(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level, interval_s=0.0)
    beats = [await stream.channel.outgoing.get() for _ in range(3)]
    assert [beat.heartbeat.sequence for beat in beats] == [1, 2, 3]
    assert [beat.frame for beat in beats] == [0, 0, 0]
    stream.channel.incoming.put_nowait(grpc.aio.EOF)
    await stream.task


async def test_a_silent_peer_is_lost(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level, timeout_s=0.001)
    with pytest.raises(ServiceUnavailableError) as caught:
        await stream.task
    assert caught.value.reason == "PEER_SILENT"


async def test_a_heartbeat_needs_no_answer(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    beat = common_pb2.Heartbeat(sequence=1)
    stream.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(heartbeat=beat))
    assert (await stream.send(frame=1)).frame == 1
    assert stream.channel.outgoing.empty()
    stream.channel.incoming.put_nowait(grpc.aio.EOF)
    await stream.task


async def test_a_frame_that_comes_twice_is_refused(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    await stream.send(frame=1)
    stream.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(frame=1))
    with pytest.raises(InvalidRequestError, match="where 2 was due"):
        await stream.task


@pytest.mark.parametrize("fields", [{"opens": [{"handle": 1}]}, {"closes": [1]}])
async def test_rows_without_a_frame_number_are_refused(
    byte_level: ModelTokenizer, fields: dict[str, Any]
) -> None:
    stream = start(byte_level)
    stream.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(**fields))
    with pytest.raises(InvalidRequestError, match="frame number"):
        await stream.task


async def test_draining_ends_a_stream_with_open_requests(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    await stream.send(frame=1, opens=[{"handle": 1}])
    stream.draining.set()
    with pytest.raises(ServiceUnavailableError) as caught:
        await stream.task
    assert caught.value.reason == "DRAINING"


async def test_draining_answers_the_frame_that_came_before(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    stream.channel.incoming.put_nowait(tokenizer_pb2.DetokenizeRequest(frame=1))
    stream.channel.on_read = stream.draining.set
    assert (await stream.channel.outgoing.get()).frame == 1
    with pytest.raises(ServiceUnavailableError):
        await stream.task


async def test_cancelling_leaves_no_task(byte_level: ModelTokenizer) -> None:
    stream = start(byte_level)
    await stream.send(frame=1)
    stream.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream.task
    assert asyncio.all_tasks() == {asyncio.current_task()}
