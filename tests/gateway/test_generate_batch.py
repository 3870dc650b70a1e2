"""GenerateBatch: many prompts in one call, with fakes behind the gateway."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import common_pb2, inference_pb2
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import EOS, encode
from tests.gateway.conftest import Gateway

WITH_IDS = inference_pb2.ResponseOptions(return_token_ids=True)


def text(value: str) -> inference_pb2.BatchPrompt:
    return inference_pb2.BatchPrompt(text=value)


def ids(*values: int) -> inference_pb2.BatchPrompt:
    return inference_pb2.BatchPrompt(token_ids=common_pb2.TokenIds(ids=values))


def conversation(content: str) -> inference_pb2.BatchPrompt:
    message = inference_pb2.ChatMessage(role="user", content=content)
    return inference_pb2.BatchPrompt(
        conversation=inference_pb2.Conversation(messages=[message] if content else [])
    )


def batch(
    *prompts: inference_pb2.BatchPrompt, max_tokens: int | None = 4, **fields: Any
) -> inference_pb2.GenerateBatchRequest:
    stopping = inference_pb2.StoppingOptions(max_tokens=max_tokens)
    return inference_pb2.GenerateBatchRequest(prompts=prompts, stopping=stopping, **fields)


async def outputs(
    gateway: Gateway, request: inference_pb2.GenerateBatchRequest
) -> list[inference_pb2.BatchOutput]:
    """All outputs, by prompt and index."""
    responses = [response async for response in gateway.grpc.GenerateBatch(request)]
    assert all(response.outputs for response in responses)
    found = [output for response in responses for output in response.outputs]
    return sorted(found, key=lambda o: (o.prompt_index, o.output.index))


async def test_every_prompt_gets_its_whole_output_once(gateway: Gateway) -> None:
    request = batch(text("abc"), ids(*encode("xy")), text("cb"), response=WITH_IDS)
    first, second, third = await outputs(gateway, request)
    assert [o.prompt_index for o in (first, second, third)] == [0, 1, 2]
    assert first.output.text == "cbac"
    assert list(first.output.token_ids) == encode("cbac")
    assert list(second.prompt_token_ids) == encode("xy")
    assert third.finished.finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert first.usage == common_pb2.Usage(
        prompt_tokens=4, completion_tokens=4, cached_tokens=NUM_CACHED_TOKENS
    )


async def test_n_outputs_of_each_prompt_and_ids_of_the_prompt_once(gateway: Gateway) -> None:
    sampling = inference_pb2.SamplingOptions(n=2, seed=1)
    found = await outputs(
        gateway, batch(text("ab"), text("cd"), sampling=sampling, response=WITH_IDS)
    )
    assert [(o.prompt_index, o.output.index) for o in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [o.finished.index for o in found] == [0, 1, 0, 1]
    assert [bool(o.prompt_token_ids) for o in found] == [True, False, True, False]
    seeds = [add.sampling_params.seed for add in gateway.scheduler.adds]
    assert seeds == [1, 2, 1, 2]


async def test_prompt_logprobs_are_on_the_first_output_of_each_prompt(gateway: Gateway) -> None:
    response = inference_pb2.ResponseOptions(prompt_logprobs=1, logprobs=1)
    found = await outputs(gateway, batch(text("ab"), text("cd"), response=response))
    assert [o.output.HasField("prompt_logprobs") for o in found] == [True, True]
    assert [len(o.output.logprobs.token_ids) for o in found] == [4, 4]


async def test_conversations_get_the_rest_of_the_context(gateway: Gateway) -> None:
    found = await outputs(gateway, batch(conversation("Hi"), conversation("Ho"), max_tokens=None))
    prompts = [list(add.prompt_token_ids) for add in gateway.scheduler.adds]
    assert prompts == [encode(f"<user>{word}\n<assistant>") for word in ("Hi", "Ho")]
    assert [o.usage.completion_tokens for o in found] == [MAX_MODEL_LEN - len(p) for p in prompts]


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (batch(), "prompt"),
        (batch(text("a"), inference_pb2.BatchPrompt()), "prompts[1]"),
        (batch(text("a"), conversation("")), "prompts[1].conversation.messages"),
        (batch(text("a"), ids(10**6)), "prompt"),
        (batch(text("a"), text("b"), max_tokens=10**6), "max_tokens"),
        (batch(*[text("a")] * 257), "n"),
    ],
)
async def test_one_bad_prompt_refuses_the_batch_before_anything_is_sent(
    gateway: Gateway, request_message: inference_pb2.GenerateBatchRequest, field: str
) -> None:
    call = gateway.grpc.GenerateBatch(request_message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for response in call:
            pytest.fail(f"got {response}")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == field
    assert gateway.scheduler.adds == []


async def test_a_finish_says_what_matched(gateway: Gateway) -> None:
    (found,) = await outputs(gateway, batch(ids(*encode("ab"), EOS), max_tokens=50))
    assert found.finished.eos_token_id == EOS


async def test_a_cancelled_batch_aborts_all_that_runs(gateway: Gateway) -> None:
    gateway.scheduler.frames_left = 2
    call = gateway.grpc.GenerateBatch(batch(text("a"), text("b"), max_tokens=100))
    await gateway.scheduler.until(lambda: len(gateway.scheduler.adds) == 2)
    call.cancel()
    await gateway.scheduler.until(lambda: len(gateway.scheduler.aborts) == 2)
