"""The requests of one stream: adds, aborts, deadlines, ends."""

import asyncio
import time

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc import gateway_session
from tests.scheduler_svc.conftest import running_stack
from tests.scheduler_svc.opened_streams import PROMPT, connect, end_of
from tests.scheduler_svc.sim_model import expected_output


@pytest.fixture
async def stack_by_priority():
    async with running_stack(max_num_seqs=1, scheduling_policy="priority") as started:
        yield started


async def test_a_request_is_admitted_and_gets_its_tokens(stack):
    gateway = await connect(stack)
    await gateway.add(7, PROMPT)
    await gateway.read_finished(7)
    assert gateway.admitted == [7]
    assert gateway.token_ids[7] == expected_output(PROMPT, 5)
    assert gateway.finished[7] == common_pb2.FINISH_REASON_LENGTH


async def test_a_stop_token_is_named(stack):
    gateway = await connect(stack)
    first = expected_output(PROMPT, 1)[0]
    await gateway.add(1, PROMPT, stop_token_ids=[first])
    await gateway.read_finished(1)
    (last,) = [f for f in gateway.frames if f.outputs.finished_handles]
    assert list(last.outputs.stop_token_ids_plus_one) == [first + 1]
    assert gateway.finished[1] == common_pb2.FINISH_REASON_STOP


async def test_a_repeated_prompt_reports_cached_tokens(stack):
    gateway = await connect(stack)
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)
    await gateway.add(2, PROMPT)
    await gateway.read_finished(2)
    assert gateway.num_cached_tokens == {1: 0, 2: 8}
    assert gateway.token_ids[1] == gateway.token_ids[2]


async def test_a_bad_request_is_refused_and_the_next_one_works(stack):
    gateway = await connect(stack)
    await gateway.add(1, [])
    await gateway.add(2, PROMPT, temperature=9.0)
    await gateway.add(3, list(range(64)))
    await gateway.add(4, PROMPT)
    await gateway.read_finished(4)
    assert {handle: error.reason for handle, error in gateway.refusals.items()} == {
        1: "EMPTY_PROMPT",
        2: "INVALID_PARAMETER",
        3: "PROMPT_TOO_LONG",
    }
    assert {error.code for error in gateway.refusals.values()} == {3}


async def test_a_handle_in_use_is_refused_and_its_request_goes_on(stack):
    stack.worker.go_on.clear()
    gateway = await connect(stack)
    await gateway.add(1, PROMPT)
    await gateway.add(1, PROMPT, request_id="other")
    await gateway.read_until(lambda: 1 in gateway.refusals)
    assert gateway.refusals[1].reason == "HANDLE_IN_USE"
    stack.worker.go_on.set()
    await gateway.read_finished(1)


async def test_a_full_queue_says_when_to_try_again():
    async with running_stack(max_num_queued_requests=1, max_num_seqs=1) as stack:
        stack.worker.go_on.clear()
        gateway = await connect(stack)
        for handle in (1, 2, 3, 4):
            await gateway.add(handle, PROMPT)
        await gateway.read_until(lambda: bool(gateway.refusals))
        refusal = next(iter(gateway.refusals.values()))
        assert (refusal.reason, refusal.code) == ("QUEUE_FULL", 8)
        assert refusal.retry_after_ms > 0


async def test_an_abort_frees_blocks_and_is_confirmed(stack):
    gateway = await connect(stack)
    stack.worker.go_on.clear()
    await gateway.add(1, PROMPT, max_tokens=40)
    await gateway.read_until(lambda: 1 in gateway.admitted)
    await gateway.abort(1)
    await gateway.read_finished(1)
    assert gateway.finished[1] == common_pb2.FINISH_REASON_ABORT
    assert stack.core.make_stats().kv_cache_usage == 0


async def test_an_abort_for_a_stop_string_counts_as_a_stop(stack):
    gateway = await connect(stack)
    stack.worker.go_on.clear()
    await gateway.add(1, PROMPT, max_tokens=40)
    await gateway.abort(1, common_pb2.ABORT_REASON_STOP_STRING)
    await gateway.read_finished(1)
    assert gateway.finished[1] == common_pb2.FINISH_REASON_STOP


async def test_an_abort_of_an_unknown_handle_does_nothing(stack):
    gateway = await connect(stack)
    await gateway.abort(99)
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)


async def test_a_resumed_request_goes_on_with_its_own_tokens(stack):
    whole = expected_output(PROMPT, 8)
    gateway = await connect(stack)
    await gateway.add(1, PROMPT, output_token_ids=whole[:3], resumed=True, max_tokens=8)
    await gateway.read_finished(1)
    assert gateway.token_ids[1] == whole[3:]


async def test_a_row_that_failed_is_an_error_of_its_request_only(stack):
    stack.worker.failing_request_ids = {"bad"}
    gateway = await connect(stack)
    await gateway.add(1, PROMPT, request_id="bad")
    await gateway.add(2, PROMPT)
    await gateway.read_finished(2)
    await gateway.read_until(lambda: 1 in gateway.errors)
    error = gateway.errors[1]
    assert (error.code, error.reason, error.message) == (13, "NAN_LOGITS", "no number")


async def test_a_deadline_ends_a_request(stack):
    stack.worker.go_on.clear()
    gateway = await connect(stack)
    await gateway.add(1, PROMPT, deadline_ns=time.time_ns() + 50_000_000)
    await gateway.read_until(lambda: 1 in gateway.errors)
    assert gateway.errors[1].code == 4
    assert stack.core.make_stats().num_requests_running == 0


async def test_a_deadline_ends_a_request_that_still_waits():
    async with running_stack(max_num_seqs=1) as stack:
        stack.worker.go_on.clear()
        gateway = await connect(stack)
        await gateway.add(1, PROMPT, max_tokens=40)
        await gateway.add(2, PROMPT, deadline_ns=time.time_ns() + 50_000_000)
        await gateway.read_until(lambda: 2 in gateway.errors)
        assert (gateway.admitted, gateway.errors[2].code) == ([1, 2], 4)
        stats = stack.core.make_stats()
        assert (stats.num_requests_running, stats.num_requests_waiting) == (1, 0)


async def test_a_request_that_comes_after_its_deadline_is_refused(stack):
    gateway = await connect(stack)
    await gateway.add(1, PROMPT, deadline_ns=time.time_ns() - 1)
    await gateway.read_until(lambda: 1 in gateway.refusals)
    assert gateway.refusals[1].code == 4
    assert gateway.admitted == []


async def test_a_priority_orders_the_requests_of_gateways(stack_by_priority):
    stack = stack_by_priority
    gateway = await connect(stack)
    mode = scheduler_pb2.PAUSE_MODE_WAIT
    async with open_channel(stack.server.server.admin_address) as channel:
        admin = scheduler_pb2_grpc.EngineAdminServiceStub(channel)
        await admin.Pause(scheduler_pb2.PauseRequest(mode=mode), timeout=10)
        for handle, priority in ((1, 5), (2, -5), (3, 0)):
            await gateway.add(handle, PROMPT, priority=priority)
        await gateway.read_until(lambda: len(gateway.admitted) == 3)
        await admin.Resume(scheduler_pb2.ResumeRequest(), timeout=10)
        await gateway.read_finished(1, 2, 3)
    assert list(gateway.finished) == [2, 3, 1]


async def test_a_priority_is_refused_where_they_do_not_count(stack):
    gateway = await connect(stack)
    await gateway.add(1, PROMPT, priority=1)
    await gateway.read_until(lambda: 1 in gateway.refusals)
    assert (gateway.refusals[1].code, gateway.refusals[1].field) == (3, "priority")


async def test_a_cancelled_stream_leaves_no_request(stack):
    gateway = await connect(stack)
    stack.worker.go_on.clear()
    for handle in range(1, 5):
        await gateway.add(handle, [handle, 1, 2], max_tokens=40)
    await gateway.read_until(lambda: len(gateway.admitted) == 4)
    gateway.call.cancel()
    await stack.wait_idle()
    assert stack.core.make_stats().kv_cache_usage == 0


async def test_a_closed_stream_ends_with_ok_and_leaves_no_request(stack):
    gateway = await connect(stack)
    stack.worker.go_on.clear()
    await gateway.add(1, PROMPT, max_tokens=40)
    await gateway.write(close=True)
    with pytest.raises(EOFError):
        while True:
            await gateway.read()
    assert await gateway.call.code() is grpc.StatusCode.OK
    assert stack.core.make_stats().num_requests_running == 0


async def test_a_silent_gateway_is_lost(stack, monkeypatch):
    monkeypatch.setattr(gateway_session, "HEARTBEAT_TIMEOUT_S", 0.2)
    gateway = await connect(stack)
    assert (await end_of(gateway)).reason == "SILENT"


async def test_heartbeats_keep_a_stream_alive_and_are_answered_in_kind(stack, monkeypatch):
    async def beat_at_once(send):
        for _ in range(3):
            await send()
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway_session, "send_heartbeats", beat_at_once)
    gateway = await connect(stack)
    await gateway.read_until(lambda: any(f.HasField("heartbeat") for f in gateway.frames))
    await gateway.write(heartbeat=common_pb2.Heartbeat(sequence=1))
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)


async def test_no_token_is_lost_with_the_worker(stack):
    gateway = await connect(stack)
    for handle in range(1, 4):
        await gateway.add(handle, [handle, *PROMPT], max_tokens=40)
    await gateway.read_until(lambda: len(gateway.token_ids.get(1, [])) >= 3)
    await stack.worker.stop()
    await gateway.read_until(lambda: gateway.frames[-1].recovering)
    await stack.worker.start()
    await gateway.read_finished(1, 2, 3)
    for handle in range(1, 4):
        assert gateway.token_ids[handle] == expected_output([handle, *PROMPT], 40)
    assert not gateway.frames[-1].recovering


async def test_a_drain_is_announced_and_ends_the_stream_after_the_last_token(stack):
    gateway = await connect(stack)
    stack.worker.go_on.clear()
    await gateway.add(1, PROMPT)
    await gateway.read_until(lambda: 1 in gateway.admitted)
    stop = asyncio.create_task(stack.server.stop())
    await gateway.read_until(lambda: gateway.frames[-1].HasField("draining"))
    await gateway.add(2, PROMPT)
    await gateway.read_until(lambda: 2 in gateway.refusals)
    assert gateway.refusals[2].reason == "DRAINING"
    stack.worker.go_on.set()
    await gateway.read_finished(1)
    assert gateway.token_ids[1] == expected_output(PROMPT, 5)
    assert (await end_of(gateway)).reason == "DRAINING"
    await stop
