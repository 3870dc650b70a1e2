import asyncio

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2

from pagewire.kit.errors import from_rpc_error
from scheduler_svc.vllm_engine.generation import LiveGenerations
from tests.scheduler_svc.sim_model import expected_output
from tests.scheduler_svc.vllm_engine.conftest import (
    VOCABULARY,
    generate_request,
    running_vllm_stack,
)

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9)
OUTPUT = expected_output(PROMPT, 5)


async def refusal(stack, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stack.generate(**fields)
    return error.value


async def test_without_streaming_there_is_one_message_with_everything(stack):
    (complete,) = await stack.generate()
    assert list(complete.output_ids) == OUTPUT
    assert complete.finish_reason == "length"
    assert (complete.prompt_tokens, complete.completion_tokens, complete.index) == (9, 5, 0)
    assert not complete.HasField("output_logprobs")
    assert complete.WhichOneof("matched_stop") is None


async def test_streamed_chunks_have_what_is_new_and_the_end_has_the_totals(stack):
    *chunks, complete = await stack.generate(stream=True)
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == OUTPUT
    assert sum(chunk.completion_tokens for chunk in chunks) == 5
    assert {chunk.prompt_tokens for chunk in chunks} == {9}
    assert list(complete.output_ids) == OUTPUT
    assert (complete.prompt_tokens, complete.completion_tokens) == (9, 5)


async def test_cached_prompt_tokens_are_told_with_the_first_token(stack):
    await stack.generate()
    first, *_, complete = await stack.generate(stream=True)
    assert (first.cached_tokens, complete.cached_tokens) == (8, 8)


async def test_a_stop_token_is_named_and_an_end_of_sequence_is_not(stack):
    (complete,) = await stack.generate(stop_token_ids=[OUTPUT[0]])
    assert complete.finish_reason == "stop"
    assert complete.matched_token_id == OUTPUT[0]


async def test_several_outputs_have_their_index(stack):
    completes = await stack.generate(n=3)
    assert [complete.index for complete in completes] == [0, 1, 2]
    assert all(list(complete.output_ids) == OUTPUT for complete in completes)


async def test_several_outputs_are_streamed_side_by_side(stack):
    messages = await stack.generate(n=2, stream=True)
    for index in (0, 1):
        *chunks, complete = [message for message in messages if message.index == index]
        assert [token_id for chunk in chunks for token_id in chunk.token_ids] == OUTPUT
        assert list(complete.output_ids) == OUTPUT


async def test_if_one_of_several_outputs_is_refused_none_goes_on():
    async with running_vllm_stack(max_num_queued_requests=1, max_num_seqs=1) as stack:
        stack.worker.go_on.clear()
        error = await refusal(stack, n=3)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stack.worker.go_on.set()
        await stack.wait_idle()


async def test_an_abort_ends_the_stream_with_a_message(stack):
    stack.worker.go_on.clear()
    answer = asyncio.create_task(stack.generate(request_id="r", n=2, max_tokens=50))
    await stack.wait_load(2)
    await stack.vllm.Abort(vllm_engine_pb2.AbortRequest(request_ids=["other", "r"]))
    completes = await answer
    assert [complete.finish_reason for complete in completes] == ["abort", "abort"]
    stack.worker.go_on.set()
    await stack.wait_idle()
    assert stack.core.make_stats().kv_cache_usage == 0


async def test_a_caller_that_goes_away_leaves_no_request(stack):
    stack.worker.go_on.clear()
    call = stack.vllm.Generate(generate_request(max_tokens=50, n=2))
    reading = asyncio.create_task(call.read())
    await stack.wait_load(2)
    call.cancel()
    await asyncio.wait((reading,))
    stack.worker.go_on.set()
    await stack.wait_idle()
    assert stack.core.make_stats().kv_cache_usage == 0


async def test_an_id_that_is_under_way_is_refused(stack):
    stack.worker.go_on.clear()
    first = asyncio.create_task(stack.generate(request_id="r"))
    await stack.wait_load(1)
    assert (await refusal(stack, request_id="r")).code() is grpc.StatusCode.ALREADY_EXISTS
    stack.worker.go_on.set()
    (complete,) = await first
    assert list(complete.output_ids) == OUTPUT


async def test_a_full_queue_says_when_to_come_again():
    async with running_vllm_stack(max_num_queued_requests=1, max_num_seqs=1) as stack:
        stack.worker.go_on.clear()
        others = [asyncio.create_task(stack.generate()) for _ in range(2)]
        await stack.wait_load(1, 1)
        error = await refusal(stack)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert from_rpc_error(error).retry_after_s is not None
        stack.worker.go_on.set()
        await asyncio.gather(*others)


async def test_what_is_out_of_bounds_is_named_before_any_message(stack):
    error = await refusal(stack, min_p=2.0)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).field == "min_p"


async def test_a_failed_request_is_the_calls_status(stack):
    stack.worker.failing_request_ids = {"bad"}
    error = await refusal(stack, request_id="bad")
    assert error.code() is grpc.StatusCode.INTERNAL


async def test_a_stop_string_ends_the_output_with_the_token_that_completes_it(stack):
    stack.servicer.vocabulary = VOCABULARY
    text = f"{OUTPUT[1]}><{str(OUTPUT[2])[0]}"
    (complete,) = await stack.generate(stop=["never", text], max_tokens=50)
    assert list(complete.output_ids) == OUTPUT[:3]
    assert (complete.finish_reason, complete.matched_stop_str) == ("stop", text)
    assert complete.completion_tokens == 3
    await stack.wait_idle()


async def test_a_stop_string_ends_a_stream(stack):
    stack.servicer.vocabulary = VOCABULARY
    await stack.generate()
    *chunks, complete = await stack.generate(stop=[f"<{OUTPUT[1]}>"], max_tokens=50, stream=True)
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == OUTPUT[:2]
    assert (complete.finish_reason, complete.cached_tokens) == ("stop", 8)


async def test_without_a_vocabulary_stop_strings_are_left_to_the_caller(stack):
    (complete,) = await stack.generate(stop=[f"<{OUTPUT[1]}>"])
    assert list(complete.output_ids) == OUTPUT


def test_an_abort_of_an_id_that_has_ended_is_passed_over():
    LiveGenerations().abort(["gone"])
