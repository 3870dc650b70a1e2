import asyncio
import time

import grpc
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import PagewireError, ServiceUnavailableError, from_rpc_error
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc import engine_stream
from tests.scheduler_svc.conftest import running_stack
from tests.scheduler_svc.gateway_client import GatewayClient
from tests.scheduler_svc.sim_model import expected_output

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.fixture
async def stack_by_priority():
    async with running_stack(max_num_seqs=1, scheduling_policy="priority") as started:
        yield started


async def connect(stack, **options):
    gateway = GatewayClient(stack.stub, **options)
    await gateway.open()
    return gateway


async def end_of(gateway) -> PagewireError:
    """The error that ends a stream."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        while True:
            await gateway.read()
    return from_rpc_error(error.value)


async def test_the_first_frame_accepts_and_names_the_engine(stack):
    gateway = GatewayClient(stack.stub)
    accepted = await gateway.open()
    assert accepted.engine_fingerprint == stack.core.require_info().fingerprint
    assert accepted.scheduler_id
    assert gateway.frames[0].frame == 1


async def test_a_request_is_admitted_and_gets_its_tokens(stack):
    gateway = await connect(stack)
    await gateway.add(7, PROMPT)
    await gateway.read_finished(7)
    assert gateway.admitted == [7]
    assert gateway.token_ids[7] == expected_output(PROMPT, 5)
    assert gateway.finished[7] == common_pb2.FINISH_REASON_LENGTH


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


async def test_a_newer_generation_aborts_what_the_older_one_owns(stack):
    stack.worker.go_on.clear()
    old = await connect(stack, generation=1)
    await old.add(1, PROMPT, request_id="same", max_tokens=40)
    await old.read_until(lambda: 1 in old.admitted)
    new = await connect(stack, generation=2)
    await new.add(1, PROMPT, request_id="same")
    await new.read_until(lambda: 1 in new.admitted)
    assert (await end_of(old)).reason == "SUPERSEDED"
    stack.worker.go_on.set()
    await new.read_finished(1)
    assert new.token_ids[1] == expected_output(PROMPT, 5)


async def test_an_older_generation_is_refused(stack):
    new = await connect(stack, generation=2)
    old = GatewayClient(stack.stub, generation=1)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await old.open()
    assert from_rpc_error(error.value).reason == "STALE_GENERATION"
    await new.add(1, PROMPT)
    await new.read_finished(1)


@pytest.mark.parametrize("fate", ["killed", "held"])
async def test_a_restarted_gateway_takes_over_with_any_generation(stack, monkeypatch, fate):
    first = await connect(stack, epoch=1, generation=9)
    if fate == "killed":
        first.call.cancel()
        # Its connection breaks; the scheduler hears of it a moment after.
        gateway = await connect_when_free(stack, epoch=2, generation=1)
    else:
        monkeypatch.setattr(engine_stream, "TAKEOVER_SILENCE_S", 0.0)
        gateway = await connect(stack, epoch=2, generation=1)
        assert (await end_of(first)).reason == "SUPERSEDED"
    await gateway.add(1, PROMPT)
    await gateway.read_finished(1)


async def connect_when_free(stack, **options):
    async with asyncio.timeout(20):
        while True:
            try:
                return await connect(stack, **options)
            except grpc.aio.AioRpcError as error:
                assert from_rpc_error(error).reason == "GATEWAY_ID_TAKEN"


async def test_two_gateways_with_one_id_do_not_end_each_others_streams(stack):
    first = await connect(stack, epoch=1)
    for generation in (1, 2):
        second = GatewayClient(stack.stub, epoch=2, generation=generation)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.open()
        error = from_rpc_error(caught.value)
        assert (error.reason, error.field) == ("GATEWAY_ID_TAKEN", "gateway_id")
        assert "'g'" in error.message and "--gateway-id" in error.message
    await first.add(1, PROMPT)
    await first.read_finished(1)
    assert first.token_ids[1] == expected_output(PROMPT, 5)


async def test_gateways_get_only_their_own_outputs(stack):
    one, two = await connect(stack, gateway_id="one"), await connect(stack, gateway_id="two")
    await one.add(1, [1, 2, 3])
    await two.add(1, [4, 5, 6])
    await one.read_finished(1)
    await two.read_finished(1)
    assert one.token_ids == {1: expected_output([1, 2, 3], 5)}
    assert two.token_ids == {1: expected_output([4, 5, 6], 5)}


async def test_a_stream_that_does_not_open_is_refused(stack):
    call = stack.stub.EngineStream()
    await call.write(scheduler_pb2.EngineStreamRequest(frame=1))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_silent_gateway_is_lost(stack, monkeypatch):
    monkeypatch.setattr(engine_stream, "HEARTBEAT_TIMEOUT_S", 0.2)
    gateway = await connect(stack)
    assert (await end_of(gateway)).reason == "SILENT"


async def test_heartbeats_keep_a_stream_alive_and_are_answered_in_kind(stack, monkeypatch):
    async def beat_at_once(send):
        for _ in range(3):
            await send()
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    monkeypatch.setattr(engine_stream, "send_heartbeats", beat_at_once)
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


async def test_outputs_that_cannot_be_written_merge_into_the_next_frame(stack):
    sent, written = [], asyncio.Queue()
    gate = asyncio.Event()
    opened = scheduler_pb2.EngineStreamOpen(gateway_id="slow", gateway_epoch=1, generation=1)

    async def frames():
        yield scheduler_pb2.EngineStreamRequest(open=opened)
        add = scheduler_pb2.EngineAdd(
            handle=3,
            request_id="slow-3",
            prompt_token_ids=PROMPT,
            sampling_params=common_pb2.SamplingParams(max_tokens=20, ignore_eos=True),
        )
        yield scheduler_pb2.EngineStreamRequest(adds=[add])
        await asyncio.Event().wait()

    async def write(frame):
        sent.append(frame)
        written.put_nowait(frame)
        if len(sent) > 1:
            await gate.wait()

    streams = engine_stream.EngineStreams(
        stack.core, engine_stream.SchedulerIdentity("scheduler", 1)
    )
    task = asyncio.create_task(streams.serve(frames(), write))
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
    monkeypatch.setattr(engine_stream, "MAX_PENDING_TOKENS", 4)
    monkeypatch.setattr(engine_stream, "FLUSH_TIMEOUT_S", 0.05)
    opened = scheduler_pb2.EngineStreamOpen(gateway_id="slow", gateway_epoch=1, generation=1)

    async def frames():
        yield scheduler_pb2.EngineStreamRequest(open=opened)
        add = scheduler_pb2.EngineAdd(
            handle=3,
            request_id="slow-3",
            prompt_token_ids=PROMPT,
            sampling_params=common_pb2.SamplingParams(max_tokens=40, ignore_eos=True),
        )
        yield scheduler_pb2.EngineStreamRequest(adds=[add])
        await asyncio.Event().wait()

    async def write(frame):
        await asyncio.Event().wait()

    streams = engine_stream.EngineStreams(
        stack.core, engine_stream.SchedulerIdentity("scheduler", 1)
    )
    with pytest.raises(ServiceUnavailableError, match="too slowly"):
        await asyncio.wait_for(streams.serve(frames(), write), 10)
    assert stack.core.make_stats().num_requests_running == 0


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
