"""What an Execute session does that a well-behaved peer never sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pagewire.kit.errors import InvalidRequestError, PagewireError, ServiceUnavailableError
from tests.worker_svc.harness import WAIT_S, ScriptedRunner
from worker_svc.device_thread import DeviceThread
from worker_svc.execute_session import (
    Accepted,
    Answer,
    CloseFrame,
    ExecuteSession,
    Frame,
    HeartbeatAnswer,
    Payload,
    StepFrame,
)
from worker_svc.execution import Execution
from worker_svc.lease import Lease
from worker_svc.step import SchedulerOutput
from worker_svc.step_executor import StepDone, StepExecutor, StepLimits

LEASE = Lease("s1", 1, 2)
LIMITS = StepLimits(16, 4, 64, 100, 64)


class Peer:
    """The scheduler's end: frames that the test sends, answers that it got."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self._number = 1

    def send(self, payload: Payload) -> None:
        self._number += 1
        self.frames.put_nowait(Frame(self._number, LEASE, payload))

    async def stream(self) -> AsyncIterator[Frame]:
        while (frame := await self.frames.get()) is not None:
            yield frame

    async def take(self, answer: Answer) -> None:
        await self.reads.wait()
        self.answers.put_nowait(answer)

    async def answer(self) -> Answer:
        return await asyncio.wait_for(self.answers.get(), WAIT_S)


@pytest.fixture
async def execution() -> AsyncIterator[Execution]:
    device = DeviceThread()
    device.start()
    yield Execution(LEASE, StepExecutor(ScriptedRunner(), LIMITS, lambda: 0), device)
    assert await device.close(WAIT_S)


async def test_heartbeats_are_sent_while_nothing_happens(execution: Execution) -> None:
    peer = Peer()
    session = ExecuteSession(execution, 5, WAIT_S, heartbeat_interval_s=0.001)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    assert await peer.answer() == Accepted(5)
    assert [await peer.answer() for _ in range(2)] == [HeartbeatAnswer(1), HeartbeatAnswer(2)]
    peer.send(CloseFrame())
    await running


async def test_a_peer_that_does_not_read_is_given_up(execution: Execution) -> None:
    peer = Peer()
    peer.reads.clear()
    session = ExecuteSession(execution, 5, timeout_s=0.05, heartbeat_interval_s=0.001)
    with pytest.raises(ServiceUnavailableError, match="lease has ended"):
        await session.run(peer.stream(), peer.take)


async def test_unread_answers_are_bounded(execution: Execution) -> None:
    peer = Peer()
    peer.reads.clear()
    session = ExecuteSession(execution, 5, WAIT_S)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    for step in range(1, 200):
        peer.send(StepFrame(SchedulerOutput(step)))
    with pytest.raises(InvalidRequestError) as caught:
        await running
    assert caught.value.reason == "TOO_MANY_STEPS"


async def test_a_peer_that_cannot_be_written_to_ends_the_session(execution: Execution) -> None:
    async def broken(answer: Answer) -> None:
        raise ServiceUnavailableError("gone")

    with pytest.raises(PagewireError, match="gone"):
        await ExecuteSession(execution, 5, WAIT_S).run(Peer().stream(), broken)


async def test_a_bug_is_not_hidden_by_the_end_of_the_stream(execution: Execution) -> None:
    async def broken(answer: Answer) -> None:
        raise ZeroDivisionError

    peer = Peer()
    peer.frames.put_nowait(None)
    with pytest.raises(ZeroDivisionError):
        await ExecuteSession(execution, 5, WAIT_S).run(peer.stream(), broken)


async def test_no_task_is_left_when_the_session_is_cancelled(execution: Execution) -> None:
    peer = Peer()
    session = ExecuteSession(execution, 5, WAIT_S)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    await peer.answer()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("execute-")]


async def test_steps_after_a_stop_are_not_run(execution: Execution) -> None:
    peer = Peer()
    session = ExecuteSession(execution, 5, WAIT_S)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    peer.send(StepFrame(SchedulerOutput(1)))
    assert await peer.answer() == Accepted(5)
    assert isinstance(await peer.answer(), StepDone)
    execution.stop.set()
    with pytest.raises(ServiceUnavailableError) as caught:
        await running
    assert caught.value.reason == "STREAM_ENDED_BY_WORKER"
