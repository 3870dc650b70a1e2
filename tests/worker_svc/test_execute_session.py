"""What an Execute session does that a well-behaved peer never sees."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from pagewire.kit.errors import (
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
    UnimplementedError,
)
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.harness import WAIT_S, ScriptedRunner
from worker_svc.device_thread import DeviceThread
from worker_svc.execute_session import (
    Accepted,
    Answer,
    BadStepFrame,
    CloseFrame,
    ExecuteSession,
    Frame,
    HeartbeatAnswer,
    MasksFrame,
    Payload,
    StepFrame,
)
from worker_svc.execution import Execution
from worker_svc.grammar_masks import GrammarMasks
from worker_svc.lease import Lease
from worker_svc.step import NewRequest, SchedulerOutput
from worker_svc.step_executor import StepDone, StepExecutor, StepFailure, StepLimits

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
def runner() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.fixture
async def device() -> AsyncIterator[DeviceThread]:
    device = DeviceThread()
    device.start()
    yield device
    assert await device.close(WAIT_S)


@pytest.fixture
def execution(runner: ScriptedRunner, device: DeviceThread) -> Execution:
    return Execution(LEASE, StepExecutor(runner, LIMITS, lambda: 0), device)


def masked_step(step: int) -> SchedulerOutput:
    """A new request under a mask; the handle is the step's number."""
    new = NewRequest(step, f"r{step}", [1, 2, 3], [], SamplingParams(), 0, [1])
    return SchedulerOutput(step, [new], [step], [3], masked_handles=[step])


def masks_frame(step: int) -> MasksFrame:
    return MasksFrame(GrammarMasks(step, [step], np.zeros((1, 13), dtype=np.uint8)))


class Open:
    """A session that runs, and its peer."""

    def __init__(self, execution: Execution) -> None:
        self.peer = Peer()
        session = ExecuteSession(execution, 5, WAIT_S)
        self.running = asyncio.create_task(session.run(self.peer.stream(), self.peer.take))

    async def until_waiting(self, runner: ScriptedRunner) -> None:
        """Send a masked step and see the device thread begin it: only its masks are missing."""
        self.peer.send(StepFrame(masked_step(1)))
        assert await asyncio.to_thread(runner.stepping.wait, WAIT_S)


async def device_is_free(device: DeviceThread) -> bool:
    return await asyncio.wait_for(device.run(lambda: True), WAIT_S)


async def test_heartbeats_are_sent_while_nothing_happens(execution: Execution) -> None:
    peer = Peer()
    session = ExecuteSession(execution, 5, WAIT_S, heartbeat_interval_s=0.001)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    assert await peer.answer() == Accepted(5)
    beats = [await peer.answer() for _ in range(2)]
    assert [beat.heartbeat.sequence for beat in beats if isinstance(beat, HeartbeatAnswer)] == [
        1,
        2,
    ]
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


@pytest.mark.parametrize("how", ["stopped", "bad step"])
async def test_a_session_that_ends_with_an_error_is_let_go_of(
    execution: Execution, how: str
) -> None:
    peer = Peer()
    session = ExecuteSession(execution, 5, WAIT_S)
    running = asyncio.create_task(session.run(peer.stream(), peer.take))
    assert await peer.answer() == Accepted(5)
    gc.collect()
    gc.disable()
    try:
        if how == "stopped":
            execution.stop.set()
        else:
            peer.send(masks_frame(3))  # of no step
        with pytest.raises(PagewireError):
            await running
        left = weakref.ref(session)
        del session, running
        await asyncio.sleep(0)  # the loop lets go of its callbacks
        assert left() is None
    finally:
        gc.enable()


async def test_masks_may_come_before_their_step_runs_and_after(
    execution: Execution, runner: ScriptedRunner
) -> None:
    stream = Open(execution)
    runner.may_step.clear()
    for step in (1, 2):
        stream.peer.send(StepFrame(masked_step(step)))
    stream.peer.send(masks_frame(2))
    runner.may_step.set()
    stream.peer.send(masks_frame(1))
    assert await stream.peer.answer() == Accepted(5)
    for step in (1, 2):
        answer = await stream.peer.answer()
        assert isinstance(answer, StepDone) and answer.output.step == step
    assert [masks.step for masks in runner.masks] == [1, 2]
    stream.peer.send(CloseFrame())
    await stream.running


@pytest.mark.parametrize("step", [0, 2, 9])
async def test_masks_for_no_masked_step_end_the_stream(execution: Execution, step: int) -> None:
    stream = Open(execution)
    stream.peer.send(StepFrame(masked_step(1)))
    stream.peer.send(StepFrame(SchedulerOutput(2)))
    stream.peer.send(masks_frame(step))
    with pytest.raises(InvalidRequestError, match=f"step {step}: none are due"):
        await stream.running
    execution.end()


async def test_masks_that_come_twice_end_the_stream(execution: Execution) -> None:
    stream = Open(execution)
    stream.peer.send(StepFrame(masked_step(1)))
    stream.peer.send(masks_frame(1))
    stream.peer.send(masks_frame(1))
    with pytest.raises(InvalidRequestError, match="none are due"):
        await stream.running


async def test_masks_of_a_step_that_failed_without_them_are_taken(execution: Execution) -> None:
    stream = Open(execution)
    bad = replace(masked_step(1), num_scheduled_tokens=[9])
    error = UnimplementedError("no", reason="NO")
    unread = SchedulerOutput(2, finished_handles=[2], masked_handles=[2])
    stream.peer.send(StepFrame(bad))
    stream.peer.send(BadStepFrame(unread, error))
    assert await stream.peer.answer() == Accepted(5)
    for reason in ("INVALID_STEP", "NO"):
        answer = await stream.peer.answer()
        assert isinstance(answer, StepFailure) and answer.reason == reason
    for step in (1, 2):
        stream.peer.send(masks_frame(step))
    stream.peer.send(CloseFrame())
    await stream.running


async def test_masks_that_do_not_come_fail_the_step_after_a_time(
    runner: ScriptedRunner, device: DeviceThread
) -> None:
    executor = StepExecutor(runner, LIMITS, lambda: 0)
    stream = Open(Execution(LEASE, executor, device, masks_timeout_s=0.01))
    stream.peer.send(StepFrame(masked_step(1)))
    assert await stream.peer.answer() == Accepted(5)
    answer = await stream.peer.answer()
    assert isinstance(answer, StepFailure) and answer.reason == "MASKS_MISSING"
    stream.peer.send(StepFrame(SchedulerOutput(2)))
    assert isinstance(await stream.peer.answer(), StepDone)
    stream.peer.send(CloseFrame())
    await stream.running


async def test_a_lost_stream_ends_the_wait_for_masks(
    execution: Execution, runner: ScriptedRunner, device: DeviceThread
) -> None:
    stream = Open(execution)
    await stream.until_waiting(runner)
    stream.peer.frames.put_nowait(None)
    with pytest.raises(ServiceUnavailableError):
        await stream.running
    execution.end()
    assert await device_is_free(device)


async def test_the_last_step_of_a_worker_that_drains_gets_its_masks(
    execution: Execution, runner: ScriptedRunner, device: DeviceThread
) -> None:
    stream = Open(execution)
    await stream.until_waiting(runner)
    stream.peer.send(StepFrame(masked_step(2)))
    execution.stop.set()
    stream.peer.send(masks_frame(1))
    assert await stream.peer.answer() == Accepted(5)
    assert isinstance(await stream.peer.answer(), StepDone)
    with pytest.raises(ServiceUnavailableError) as caught:
        await stream.running
    assert caught.value.reason == "STREAM_ENDED_BY_WORKER"
    assert [masks.step for masks in runner.masks] == [1]
    assert await device_is_free(device)


async def test_a_worker_that_drains_waits_a_moment_for_masks(
    execution: Execution,
    runner: ScriptedRunner,
    device: DeviceThread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker_svc.execution.LAST_MASKS_TIMEOUT_S", 0.05)
    stream = Open(execution)
    await stream.until_waiting(runner)
    execution.stop.set()
    assert await stream.peer.answer() == Accepted(5)
    answer = await stream.peer.answer()
    assert isinstance(answer, StepFailure) and answer.reason == "MASKS_MISSING"
    with pytest.raises(ServiceUnavailableError) as caught:
        await stream.running
    assert caught.value.reason == "STREAM_ENDED_BY_WORKER"
    assert await device_is_free(device)


async def test_masks_that_cross_with_the_end_are_no_error(
    execution: Execution, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Open(execution)
    stream.peer.reads.clear()  # so that the stream is still there
    await stream.until_waiting(runner)
    monkeypatch.setattr("worker_svc.execution.LAST_MASKS_TIMEOUT_S", 0.05)
    execution.stop.set()
    # Begun and failed for want of masks: by then the session has seen the stop.
    while not all(future.done() for future in execution._queued):
        await asyncio.wait(execution._queued)
    stream.peer.send(masks_frame(1))
    stream.peer.send(masks_frame(1))
    stream.peer.reads.set()
    with pytest.raises(ServiceUnavailableError):
        await stream.running


async def test_a_close_without_the_masks_fails_the_step_at_once(
    execution: Execution, runner: ScriptedRunner
) -> None:
    stream = Open(execution)
    await stream.until_waiting(runner)
    stream.peer.send(CloseFrame())
    await stream.running
    answers = [await stream.peer.answer() for _ in range(2)]
    assert isinstance(answers[1], StepFailure) and answers[1].reason == "MASKS_MISSING"


async def test_a_close_behind_the_masks_answers_their_step(
    execution: Execution, runner: ScriptedRunner
) -> None:
    stream = Open(execution)
    await stream.until_waiting(runner)
    stream.peer.send(masks_frame(1))
    stream.peer.send(CloseFrame())
    await stream.running
    assert [masks.step for masks in runner.masks] == [1]
