"""What waits for a gateway: merged frames, and how much there may be."""

import asyncio
from itertools import count

import pytest

from pagewire.kit.errors import ServiceUnavailableError
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc import gateway_session
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.engine_streams import EngineStreams, SchedulerIdentity
from scheduler_svc.gateway_outbox import GatewayOutbox
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.step_figures import StepTimings
from tests.scheduler_svc.opened_streams import PROMPT, connect
from tests.scheduler_svc.sim_model import expected_output


async def test_frames_are_numbered_and_steps_go_on(stack):
    gateway = await connect(stack)
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)
    assert [frame.frame for frame in gateway.frames] == list(range(1, len(gateway.frames) + 1))
    steps = [f.outputs.first_step for f in gateway.frames if f.HasField("outputs")]
    assert steps == sorted(steps)


async def test_all_requests_of_a_step_come_in_one_frame(stack):
    stack.worker.go_on.clear()
    gateway = await connect(stack)
    for handle in range(1, 6):
        await gateway.add(handle, [handle, 2, 3])
    await gateway.read_until(lambda: len(gateway.admitted) == 5)
    stack.worker.go_on.set()
    await gateway.read_finished(*range(1, 6))
    assert max(len(frame.outputs.handles) for frame in gateway.frames) >= 4


async def test_outputs_that_cannot_be_written_merge_into_the_next_frame(stack):
    sent, written = [], asyncio.Queue()
    gate = asyncio.Event()

    async def write(frame):
        sent.append(frame)
        written.put_nowait(frame)
        if len(sent) > 1:
            await gate.wait()

    task = asyncio.create_task(make_streams(stack).serve(frames_of(add_of(3)), write))
    await written.get()
    # Written behind the gate while the request runs to its end.
    await written.get()
    await stack.wait_idle()
    gate.set()
    while not (await written.get()).outputs.finished_handles:
        pass
    task.cancel()
    await asyncio.wait((task,))
    rows = [frame.outputs for frame in sent if frame.outputs.handles]
    assert len(rows) <= 2
    tokens = [token_id for outputs in rows for token_id in outputs.token_ids]
    assert tokens == expected_output(PROMPT, 20)
    assert rows[-1].last_step > rows[-1].first_step


async def test_a_gateway_that_falls_too_far_behind_is_lost(stack, monkeypatch):
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 4)
    await lose_slow_gateway(stack, monkeypatch, frames_of(add_of(3, max_tokens=40)))
    assert stack.core.make_stats().num_requests_running == 0


@pytest.mark.parametrize(
    ("field", "num_each"), [("logprobs", 44), ("prompt_logprobs", 44), ("tokens", 1)]
)
async def test_whatever_a_request_asks_for_what_waits_is_bounded(
    field, num_each, stack, monkeypatch
):
    """The numbers that wait, not the tokens that they came with."""
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 5000)
    monkeypatch.setattr(gateway_session, "SLOW_WRITE_S", 0.0)
    stack.worker.go_on.clear()
    streams, taken = make_streams(stack), asyncio.Event()

    async def write(frame):
        await asyncio.Event().wait()

    task = asyncio.create_task(streams.serve(frames_of(add_of(3), taken=taken), write))
    await taken.wait()
    session = streams._sessions["slow"]
    num_steps = 0
    while not session._ended.is_set():
        num_steps += 1
        session.put_outputs(one_token(field), StepTimings())
    assert num_steps * num_each <= 5000 + 2 * num_each
    task.cancel()
    await asyncio.wait((task,))


def one_token(field):
    outputs = EngineCoreOutputs(1, ["slow-3"], [[7]])
    rows = LogprobRows([-1.0], [1], [20], list(range(20)), [-1.0] * 20)
    if field == "logprobs":
        outputs.logprobs[0] = rows
    elif field == "prompt_logprobs":
        outputs.prompt_logprobs[0] = rows
    return outputs


async def one_request(stack):
    """A gateway whose only request waits for its first step, and the session that it has."""
    stack.worker.go_on.clear()
    gateway = await connect(stack, gateway_id="slow")
    await gateway.add(3, PROMPT)
    await gateway.read_until(lambda: gateway.admitted == [3])
    return gateway, next(iter(stack.core._clients._sinks.values()))


async def test_a_gateway_that_reads_is_not_lost_for_what_one_step_gives(stack, monkeypatch):
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 100)
    gateway, session = await one_request(stack)
    outputs = EngineCoreOutputs(1, ["slow-3"], [list(range(5000))])
    session.put_outputs(outputs, StepTimings())
    await gateway.read_until(lambda: len(gateway.token_ids.get(3, [])) == 5000)
    session.put_outputs(outputs, StepTimings())
    await gateway.read_until(lambda: len(gateway.token_ids[3]) == 10_000)


async def test_what_comes_before_a_frame_is_taken_in_its_time_is_no_sign_of_a_slow_gateway(
    stack, monkeypatch
):
    """Neither the next step, nor an add in the turn in which a step came."""
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 100)
    monkeypatch.setattr(gateway_session, "SLOW_WRITE_S", 1000.0)
    gateway, session = await one_request(stack)
    outputs = EngineCoreOutputs(1, ["slow-3"], [list(range(150))])
    session.put_outputs(outputs, StepTimings())
    session.put_outputs(outputs, StepTimings())
    assert not session._is_over()
    await gateway.read_until(lambda: len(gateway.token_ids.get(3, [])) == 300)


async def test_there_is_a_most_that_waits_for_any_gateway(stack, monkeypatch):
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 100)
    monkeypatch.setattr(gateway_session, "SLOW_WRITE_S", 1000.0)
    _, session = await one_request(stack)
    outputs = EngineCoreOutputs(1, ["slow-3"], [list(range(250))])
    session.put_outputs(outputs, StepTimings())
    session.put_outputs(outputs, StepTimings())
    assert session._is_over()


@pytest.mark.parametrize("ends", ["refused", "aborted"])
async def test_a_gateway_that_asks_and_does_not_read_is_lost(ends, stack, monkeypatch):
    """Its answers wait too."""
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 1000)
    asked = []

    async def frames():
        yield opening()
        for handle in count(1):
            asked.append(handle)
            if ends == "refused":
                yield scheduler_pb2.EngineStreamRequest(adds=[add_of(handle, temperature=9.0)])
            else:
                yield scheduler_pb2.EngineStreamRequest(adds=[add_of(handle)])
                yield scheduler_pb2.EngineStreamRequest(abort_handles=[handle])

    await lose_slow_gateway(stack, monkeypatch, frames())
    assert len(asked) < 1000


async def test_one_frame_of_many_adds_is_bounded_as_well(stack, monkeypatch):
    monkeypatch.setattr(gateway_session, "MAX_PENDING_VALUES", 1000)
    refused = []
    fail = GatewayOutbox.fail

    def count_and_fail(outbox, handle, error, *, is_admitted):
        refused.append(handle)
        fail(outbox, handle, error, is_admitted=is_admitted)

    monkeypatch.setattr(GatewayOutbox, "fail", count_and_fail)
    adds = [add_of(handle, temperature=9.0) for handle in range(500)]
    await lose_slow_gateway(stack, monkeypatch, frames_of(*adds))
    assert len(refused) < 150


async def lose_slow_gateway(stack, monkeypatch, frames):
    """Serve a gateway that reads nothing, until it is lost."""
    monkeypatch.setattr(gateway_session, "FLUSH_TIMEOUT_S", 0.05)

    async def write(frame):
        await asyncio.Event().wait()

    with pytest.raises(ServiceUnavailableError, match="too slowly"):
        await asyncio.wait_for(make_streams(stack).serve(frames, write), 10)


def make_streams(stack):
    return EngineStreams(stack.core, SchedulerIdentity("scheduler", 1))


def opening():
    return scheduler_pb2.EngineStreamRequest(
        open=scheduler_pb2.EngineStreamOpen(gateway_id="slow", gateway_epoch=1, generation=1)
    )


async def frames_of(*adds, taken=None):
    yield opening()
    yield scheduler_pb2.EngineStreamRequest(adds=adds)
    if taken is not None:
        taken.set()
    await asyncio.Event().wait()


def add_of(handle, **params):
    params = {"max_tokens": 20, "ignore_eos": True} | params
    return scheduler_pb2.EngineAdd(
        handle=handle,
        request_id=f"slow-{handle}",
        prompt_token_ids=PROMPT,
        sampling_params=common_pb2.SamplingParams(**params),
    )
