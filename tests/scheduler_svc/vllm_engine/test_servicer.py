import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from scheduler_svc.pause import PauseMode


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


async def loads(stack, **fields):
    return (await stack.vllm.GetLoads(vllm_engine_pb2.GetLoadsRequest(**fields))).loads


async def test_the_engine_is_healthy_until_it_drains(stack):
    request = vllm_engine_pb2.HealthCheckRequest()
    assert (await stack.vllm.HealthCheck(request)).healthy
    await stack.front_door.set_serving(False, "draining")
    answer = await stack.vllm.HealthCheck(request)
    assert not answer.healthy
    assert answer.message


async def test_model_info_tells_what_a_gateway_needs(stack):
    info = await stack.vllm.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
    assert (info.served_model_name, list(info.architectures)) == ("fake", ["Fake"])
    assert (info.max_context_length, info.max_req_input_len, info.vocab_size) == (64, 63, 1000)
    assert (list(info.eos_token_ids), info.is_generation) == ([999], True)


async def test_server_info_tells_of_this_process(stack):
    await stack.generate()
    request = vllm_engine_pb2.GetServerInfoRequest()
    info = await stack.vllm.GetServerInfo(request)
    assert (info.server_type, info.data_parallel_size) == ("vllm-grpc", 1)
    assert (info.block_size, info.max_num_seqs, info.model_dtype) == (4, 8, "float32")
    assert info.uptime_seconds > 0
    assert info.last_receive_timestamp > 0
    assert not info.is_paused
    await stack.core.pause(PauseMode.KEEP)
    assert (await stack.vllm.GetServerInfo(request)).is_paused


async def test_loads_follow_the_requests(stack):
    stack.worker.go_on.clear()
    running = asyncio.create_task(stack.generate(max_tokens=20))
    await stack.wait_load(1)
    (load,) = await loads(stack)
    assert (load.num_total_reqs, load.max_running_requests) == (1, 8)
    assert (load.num_used_tokens, load.max_total_num_tokens) == (12, 39 * 4)
    assert load.utilization == 1 / 8
    stack.worker.go_on.set()
    await running
    assert (await loads(stack))[0].token_usage == 0


async def test_there_is_no_load_of_another_rank(stack):
    assert len(await loads(stack, dp_rank=0)) == 1
    assert len(await loads(stack, dp_rank=1)) == 0


async def test_the_prefix_cache_is_flushed_only_without_requests(stack):
    await stack.generate()
    stack.worker.go_on.clear()
    running = asyncio.create_task(stack.generate(max_tokens=20))
    await stack.wait_load(1)
    assert not (await _flush(stack, 0)).success
    waiting = asyncio.create_task(_flush(stack, 60))
    stack.worker.go_on.set()
    await running
    assert (await waiting).success
    (complete,) = await stack.generate()
    assert complete.cached_tokens == 0


async def _flush(stack, timeout_s):
    return await stack.vllm.FlushCache(common_pb2.FlushCacheRequest(timeout_s=timeout_s))


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
async def test_a_flush_waits_for_a_bounded_time(stack, timeout_s):
    assert await refused(_flush(stack, timeout_s)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_is_not_served_says_so(stack):
    for call in (
        stack.vllm.Embed(vllm_engine_pb2.EmbedRequest()),
        stack.vllm.StartProfile(common_pb2.StartProfileRequest()),
        stack.vllm.StopProfile(common_pb2.StopProfileRequest()),
    ):
        assert await refused(call) is grpc.StatusCode.UNIMPLEMENTED


async def test_kv_events_are_replayed_from_a_number_on(stack):
    await stack.generate()
    request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=1)
    call = stack.vllm.SubscribeKvEvents(request)
    batch = await call.read()
    assert batch.sequence_number == 1
    blocks = batch.events[0].stored.blocks
    assert [list(block.token_ids) for block in blocks] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    call.cancel()


async def test_a_subscriber_hears_at_once_that_it_is_one(stack):
    call = stack.vllm.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
    async with asyncio.timeout(10):
        await call.initial_metadata()
    call.cancel()


async def test_a_subscriber_that_asks_for_what_is_gone_forgets_all_and_goes_on(stack):
    request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=1000)
    call = stack.vllm.SubscribeKvEvents(request)
    batch = await call.read()
    assert [event.WhichOneof("data") for event in batch.events] == ["cleared"]
    await stack.generate()
    assert (await call.read()).sequence_number == batch.sequence_number + 1
    call.cancel()
