import asyncio

import grpc
import pytest

from pagewire.block_hash import hash_block
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc
from tests.scheduler_svc.sim_model import expected_output

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def generate_request(prompt=PROMPT, request_id="", **params):
    return scheduler_pb2.SchedulerServiceGenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=common_pb2.SamplingParams(
            **({"max_tokens": 5, "ignore_eos": True} | params)
        ),
    )


async def test_engine_info_tells_what_gateways_need(stack):
    info = await stack.stub.GetEngineInfo(scheduler_pb2.GetEngineInfoRequest())
    assert list(info.served_model_names) == ["fake", "also"]
    assert (info.max_model_len, info.block_size, info.num_gpu_blocks) == (64, 4, 40)
    assert info.model_info.vocab_size == 1000
    assert len(info.engine_fingerprint) == 64
    assert (info.max_num_seqs, info.max_logprobs) == (8, 20)


async def test_generate_streams_tokens_and_ends_with_usage(stack):
    messages = [message async for message in stack.stub.Generate(generate_request())]
    token_ids = [token_id for message in messages for token_id in message.token_ids]
    assert token_ids == expected_output(PROMPT, 5)
    assert [m.finish_reason for m in messages[:-1]] == [0] * (len(messages) - 1)
    last = messages[-1]
    assert last.finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (9, 5)


async def test_generate_names_the_stop_token(stack):
    stop = expected_output(PROMPT, 1)[0]
    messages = [m async for m in stack.stub.Generate(generate_request(stop_token_ids=[stop]))]
    assert messages[-1].stop_token_id == stop
    assert messages[-1].finish_reason == common_pb2.FINISH_REASON_STOP


async def test_generate_refuses_before_any_message(stack):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in stack.stub.Generate(generate_request(prompt=[])):
            pass
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error.value).reason == "EMPTY_PROMPT"


async def test_a_cancelled_generate_leaves_no_request(stack):
    stack.worker.go_on.clear()
    call = stack.stub.Generate(generate_request(max_tokens=40))
    reading = asyncio.create_task(call.read())
    async for load in stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50)):
        if load.num_requests_running + load.num_requests_waiting:
            break
    call.cancel()
    await asyncio.wait((reading,))
    await stack.wait_idle()
    assert stack.core.make_stats().kv_cache_usage == 0


async def test_a_failed_request_is_an_internal_error_of_its_call(stack):
    stack.worker.failing_request_ids = {"bad"}
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in stack.stub.Generate(generate_request(request_id="bad")):
            pass
    assert error.value.code() is grpc.StatusCode.INTERNAL


async def test_load_is_told_at_once_and_at_a_change(stack):
    loads = stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50))
    first = await loads.read()
    assert first.ready
    assert (first.num_requests_running, first.generation_tokens) == (0, 0)
    async for _ in stack.stub.Generate(generate_request()):
        pass
    async with asyncio.timeout(10):
        while (await loads.read()).generation_tokens < 5:
            pass
    loads.cancel()


async def test_a_load_that_does_not_change_is_told_again_now_and_then(stack, monkeypatch):
    monkeypatch.setattr("scheduler_svc.servicer.HEARTBEAT_INTERVAL_S", 0.05)
    loads = stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=1000), timeout=20)
    first, second = await loads.read(), await loads.read()
    assert first == second
    loads.cancel()


async def generate(stack, prompt=PROMPT, **params):
    return [message async for message in stack.stub.Generate(generate_request(prompt, **params))]


async def follow(stack, start_sequence=0):
    call = stack.stub.SubscribeKvEvents(
        scheduler_pb2.SubscribeKvEventsRequest(start_sequence=start_sequence), timeout=10
    )
    await call.initial_metadata()
    return call


async def read_events(call):
    while (message := await call.read()).sequence == 0:
        pass
    return message


async def test_kv_events_tell_what_is_cached_and_what_is_cleared(stack, admin):
    call = await follow(stack)
    await generate(stack)
    stored = await read_events(call)
    assert stored.sequence == 1
    (blocks,) = stored.stored
    parent = None
    for index, block_hash in enumerate(blocks.hashes):
        parent = hash_block(parent, PROMPT[4 * index : 4 * index + 4])
        assert parent == block_hash
    assert (blocks.parent_hash, list(blocks.token_ids), blocks.block_size) == (b"", PROMPT[:8], 4)
    while not (await admin.ResetPrefixCache(scheduler_pb2.ResetPrefixCacheRequest())).reset:
        pass
    while not (message := await read_events(call)).all_cleared:
        assert message.stored
    call.cancel()


async def test_kv_events_can_be_replayed(stack):
    await generate(stack)
    call = await follow(stack, start_sequence=1)
    assert (await read_events(call)).sequence == 1
    call.cancel()


async def test_kv_events_that_are_not_there_end_with_where_to_resume(stack):
    await generate(stack, max_tokens=1)
    call = stack.stub.SubscribeKvEvents(
        scheduler_pb2.SubscribeKvEventsRequest(start_sequence=1000), timeout=10
    )
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    lost = from_rpc_error(error.value)
    assert (lost.reason, lost.metadata["resume_from"]) == ("KV_EVENTS_LOST", "2")


async def test_a_subscriber_that_does_not_read_is_ended_and_the_engine_goes_on(stack):
    log = stack.core.kv_events
    call = await follow(stack)
    # Far more than the buffer holds while the event loop has no time for the subscriber.
    num_batches = 0
    while num_batches < 5000:
        log.blocks_stored(None, [bytes(32)], range(1000))
        log.flush()
        num_batches += 1
    messages = await generate(stack)
    assert messages[-1].usage.completion_tokens == 5
    with pytest.raises(grpc.aio.AioRpcError) as error:
        while True:
            await call.read()
    lost = from_rpc_error(error.value)
    assert lost.reason == "KV_EVENTS_LOST"
    again = await follow(stack, start_sequence=int(lost.metadata["resume_from"]))
    assert (await read_events(again)).sequence == int(lost.metadata["resume_from"])
    again.cancel()


def snapshot_call(stack, **fields):
    request = scheduler_pb2.SubscribeKvEventsRequest(snapshot=True, **fields)
    return stack.stub.SubscribeKvEvents(request, timeout=10)


@pytest.mark.parametrize("hashes_a_message", [1, 2, 1000])
async def test_a_late_subscriber_gets_what_is_there_and_then_what_changes(
    stack, monkeypatch, hashes_a_message
):
    monkeypatch.setattr("scheduler_svc.convert.kv_events._HASHES_A_MESSAGE", hashes_a_message)
    await generate(stack, max_tokens=8)
    known, call = [], snapshot_call(stack, hashes_only=True)
    while True:
        part = (await call.read()).snapshot
        known += part.hashes
        assert len(part.hashes) <= hashes_a_message
        if part.is_last:
            break
    assert sorted(known) == sorted(stack.core.cached_hashes())
    assert known
    await generate(stack, prompt=[*PROMPT, 10, 11, 12], max_tokens=1)
    batch = await read_events(call)
    assert batch.sequence == part.through_sequence + 1
    assert [len(stored.hashes) for stored in batch.stored] == [1]
    assert not batch.stored[0].token_ids
    call.cancel()


async def test_the_snapshot_of_an_empty_cache_has_one_empty_part(stack):
    call = snapshot_call(stack)
    part = (await call.read()).snapshot
    assert (part.through_sequence, list(part.hashes), part.is_last) == (0, [], True)
    call.cancel()


async def test_a_snapshot_says_itself_where_it_ends(stack):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await snapshot_call(stack, start_sequence=1).read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_a_buffer_there_are_no_kv_events(stack, monkeypatch):
    monkeypatch.setattr(stack.core, "kv_events", None)
    call = stack.stub.SubscribeKvEvents(scheduler_pb2.SubscribeKvEventsRequest(), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert from_rpc_error(error.value).reason == "KV_EVENTS_OFF"


@pytest.fixture
async def admin(stack):
    async with open_channel(stack.server.server.admin_address) as channel:
        yield scheduler_pb2_grpc.EngineAdminServiceStub(channel)


async def test_the_prefix_cache_is_reset_on_demand(stack, admin):
    for _ in range(2):
        async for message in stack.stub.Generate(generate_request()):
            last = message
    assert last.usage.cached_tokens == 8
    assert (await admin.ResetPrefixCache(scheduler_pb2.ResetPrefixCacheRequest())).reset
    async for message in stack.stub.Generate(generate_request()):
        last = message
    assert last.usage.cached_tokens == 0


async def test_a_pause_keeps_requests_until_the_resume(stack, admin):
    mode = scheduler_pb2.PAUSE_MODE_KEEP
    await admin.Pause(scheduler_pb2.PauseRequest(mode=mode), timeout=10)
    call = stack.stub.Generate(generate_request())
    async for load in stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50)):
        if load.num_requests_waiting:
            break
    assert stack.core.make_stats().num_requests_running == 0
    await admin.Resume(scheduler_pb2.ResumeRequest(), timeout=10)
    messages = [message async for message in call]
    assert [i for m in messages for i in m.token_ids] == expected_output(PROMPT, 5)


async def test_a_pause_that_aborts_ends_calls(stack, admin):
    stack.worker.go_on.clear()
    call = stack.stub.Generate(generate_request(max_tokens=40))
    async for load in stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50)):
        if load.num_requests_running:
            break
    mode = scheduler_pb2.PAUSE_MODE_ABORT
    pause = asyncio.ensure_future(admin.Pause(scheduler_pb2.PauseRequest(mode=mode), timeout=10))
    messages = [message async for message in call]
    assert messages[-1].finish_reason == common_pb2.FINISH_REASON_ABORT
    stack.worker.go_on.set()
    await pause


async def test_a_pause_without_a_mode_is_refused(admin):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await admin.Pause(scheduler_pb2.PauseRequest(), timeout=10)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error.value).field == "mode"


async def test_a_sleep_and_its_end_reach_the_worker(stack, admin):
    mode = scheduler_pb2.PAUSE_MODE_KEEP
    await admin.Sleep(scheduler_pb2.SleepRequest(level=2, mode=mode), timeout=10)
    assert stack.worker.sleep_levels == [2]
    assert (await admin.WakeUp(scheduler_pb2.WakeUpRequest(tags=["weights"]))).is_sleeping
    assert not (await admin.WakeUp(scheduler_pb2.WakeUpRequest(tags=["kv_cache"]))).is_sleeping
    assert stack.worker.asleep == set()
    call = stack.stub.Generate(generate_request(max_tokens=5))
    messages = [message async for message in call]
    assert [i for m in messages for i in m.token_ids] == expected_output(PROMPT, 5)


async def test_a_sleep_without_a_mode_ends_requests(stack, admin):
    stack.worker.go_on.clear()
    call = stack.stub.Generate(generate_request(max_tokens=40))
    async for load in stack.stub.WatchLoad(scheduler_pb2.WatchLoadRequest(interval_ms=50)):
        if load.num_requests_running:
            break
    sleep = asyncio.ensure_future(admin.Sleep(scheduler_pb2.SleepRequest(level=1), timeout=10))
    messages = [message async for message in call]
    assert messages[-1].finish_reason == common_pb2.FINISH_REASON_ABORT
    stack.worker.go_on.set()
    await sleep


async def test_a_level_that_there_is_not_is_refused(admin):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await admin.Sleep(scheduler_pb2.SleepRequest(level=3), timeout=10)
    assert from_rpc_error(error.value).field == "level"


@pytest.mark.parametrize("name", ["LoadLora", "UnloadLora"])
async def test_what_is_not_served_yet_says_so(admin, name):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await getattr(admin, name)(getattr(scheduler_pb2, f"{name}Request")())
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert name in error.value.details()
