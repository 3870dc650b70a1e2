"""One EngineStream over a call that is made of futures."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

from gateway.engine_stream import EngineStream, GatewayIdentity
from pagewire.kit.tasks import cancel_and_wait
from pagewire.v1 import scheduler_pb2


class Call:
    """As grpc.aio has it: a write that is under way when the call is cancelled is cancelled."""

    def __init__(self) -> None:
        self.writing: asyncio.Future[None] | None = None
        self.hangs = False
        self.started = asyncio.Event()

    async def read(self) -> scheduler_pb2.EngineStreamResponse:
        accepted = scheduler_pb2.EngineStreamAccepted(scheduler_id="s")
        return scheduler_pb2.EngineStreamResponse(accepted=accepted)

    async def write(self, frame: Any) -> None:
        if self.hangs:
            self.writing = asyncio.get_running_loop().create_future()
            self.started.set()
            await self.writing

    def cancel(self) -> None:
        assert self.writing is not None
        self.writing.cancel()


async def open_stream() -> tuple[EngineStream, Call]:
    call = Call()
    stream = EngineStream(Mock(EngineStream=lambda: call), Mock(), Mock())
    await stream.open(GatewayIdentity("g", 1), 1, 5.0)
    call.hangs = True
    return stream, call


async def test_a_call_that_is_cancelled_while_a_goodbye_is_written_cancels_nobody() -> None:
    stream, call = await open_stream()
    leaving = asyncio.create_task(stream.say_goodbye())
    await call.started.wait()
    stream.cancel()
    await asyncio.wait((leaving,))
    assert not leaving.cancelled() and leaving.exception() is None


async def test_a_goodbye_that_is_itself_cancelled_ends_so() -> None:
    stream, call = await open_stream()
    leaving = asyncio.create_task(stream.say_goodbye())
    await call.started.wait()
    await cancel_and_wait(leaving)
    assert leaving.cancelled()
