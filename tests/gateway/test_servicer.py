"""The public gRPC API, with fakes behind the gateway."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import common_pb2, inference_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import BOS, EOS, VOCAB_SIZE, encode
from tests.gateway.conftest import Gateway, GatewayFactory

CLIENT_GONE = common_pb2.ABORT_REASON_CLIENT_GONE


def generate(
    text: str = "abc", max_tokens: int = 4, **fields: Any
) -> inference_pb2.GenerateRequest:
    stopping = inference_pb2.StoppingOptions(max_tokens=max_tokens)
    fields = {"text": text, "stopping": stopping} | fields
    return inference_pb2.GenerateRequest(**fields)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The status of a call that must fail before it gives anything."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for event in call:
            pytest.fail(f"got {event}")
    return caught.value


async def test_events_come_in_the_contracts_order(gateway: Gateway) -> None:
    request = generate(
        sampling=inference_pb2.SamplingOptions(n=2, seed=1),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
        request_id="mine",
    )
    events = [event async for event in gateway.grpc.Generate(request)]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-1] == "usage"
    assert kinds.count("finished") == 2
    started = events[0].started
    assert (started.request_id, started.model, started.prompt_tokens) == ("mine", MODEL, 4)
    assert started.created > 0
    for index in (0, 1):
        deltas = [e.delta for e in events if e.WhichOneof("event") == "delta"]
        mine = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in mine) == "cbac"
        assert [i for delta in mine for i in delta.token_ids] == encode("cbac")
    assert events[-1].usage == common_pb2.Usage(
        prompt_tokens=4, completion_tokens=8, cached_tokens=NUM_CACHED_TOKENS
    )


async def test_a_finish_says_what_matched(gateway: Gateway) -> None:
    async def finish(**fields: Any) -> inference_pb2.GenerationFinished:
        events = [event async for event in gateway.grpc.Generate(generate(**fields))]
        finished: inference_pb2.GenerationFinished = events[-2].finished
        return finished

    stop_token = inference_pb2.StoppingOptions(max_tokens=50, stop_token_ids=[ord("b")])
    stop_string = inference_pb2.StoppingOptions(max_tokens=50, stop=["ba"])
    eos = inference_pb2.StoppingOptions(max_tokens=50)
    ended = common_pb2.TokenIds(ids=[*encode("ab"), EOS])
    assert (await finish(stopping=stop_token)).stop_token_id == ord("b")
    assert (await finish(stopping=stop_string)).stop_string == "ba"
    assert (await finish(stopping=eos, text=None, token_ids=ended)).eos_token_id == EOS
    assert (await finish()).finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_chat_renders_the_conversation(gateway: Gateway) -> None:
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role="user", content="Hi")]
    )
    events = [event async for event in gateway.grpc.Chat(request)]
    prompt = encode("<user>Hi\n<assistant>")
    assert list(gateway.scheduler.adds[0].prompt_token_ids) == prompt
    assert events[-1].usage.completion_tokens == MAX_MODEL_LEN - len(prompt)


@pytest.mark.parametrize(
    ("request_message", "code"),
    [
        (generate(model="nope"), grpc.StatusCode.NOT_FOUND),
        (inference_pb2.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        (generate(max_tokens=0), grpc.StatusCode.INVALID_ARGUMENT),
        (generate(max_tokens=10**6), grpc.StatusCode.INVALID_ARGUMENT),
        (
            generate(text=None, token_ids=common_pb2.TokenIds(ids=[VOCAB_SIZE])),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            generate(sampling=inference_pb2.SamplingOptions(temperature=float("nan"))),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (generate(request_id="x" * 200), grpc.StatusCode.INVALID_ARGUMENT),
        (
            generate(response=inference_pb2.ResponseOptions(logprobs=1)),
            grpc.StatusCode.UNIMPLEMENTED,
        ),
    ],
)
async def test_refusals_come_before_any_message_with_a_reason(
    gateway: Gateway, request_message: Any, code: grpc.StatusCode
) -> None:
    error = await refusal(gateway.grpc.Generate(request_message))
    assert error.code() is code
    assert from_rpc_error(error).reason
    assert gateway.scheduler.adds == []


async def test_a_cancelled_call_aborts_its_request(gateway: Gateway) -> None:
    gateway.scheduler.frames_left = 2
    call = gateway.grpc.Generate(generate(max_tokens=100))
    assert (await call.read()).HasField("started")
    call.cancel()
    await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
    assert gateway.scheduler.aborts == [(gateway.scheduler.adds[0].request_id, CLIENT_GONE)]


async def test_a_clients_deadline_reaches_the_engine_and_ends_the_request(
    gateway: Gateway,
) -> None:
    gateway.scheduler.go_on.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in gateway.grpc.Generate(generate(), timeout=0.3):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    add = gateway.scheduler.adds[0]
    assert 0 < add.deadline_ns - add.arrival_time_ns < 10**9
    await gateway.scheduler.until(lambda: gateway.scheduler.aborts)


async def test_models_and_tokens_can_be_asked_for(gateway: Gateway) -> None:
    models = (await gateway.grpc.ListModels(inference_pb2.ListModelsRequest())).models
    assert [(model.id, model.max_model_len) for model in models] == [(MODEL, MAX_MODEL_LEN)]
    tokens = await gateway.grpc.Tokenize(inference_pb2.TokenizeRequest(text="ab"))
    assert list(tokens.token_ids) == [BOS, *encode("ab")]
    count = await gateway.grpc.CountTokens(
        inference_pb2.CountTokensRequest(
            messages=[inference_pb2.ChatMessage(role="user", content="Hi")]
        )
    )
    assert count.num_tokens == len("<user>Hi\n<assistant>")
    text = await gateway.grpc.Detokenize(
        inference_pb2.InferenceServiceDetokenizeRequest(token_ids=encode("ab"))
    )
    assert text.text == "ab"


async def test_embed_is_unimplemented(gateway: Gateway) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.grpc.Embed(inference_pb2.EmbedRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_with_keys_a_call_needs_one(run_gateway: GatewayFactory) -> None:
    async with run_gateway(api_key=("k1",)) as gateway:
        error = await refusal(gateway.grpc.Generate(generate()))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer k1"),)
        events = [e async for e in gateway.grpc.Generate(generate(), metadata=metadata)]
        assert events[-1].HasField("usage")


async def test_a_form_of_the_output_reaches_the_engine(gateway: Gateway) -> None:
    form = common_pb2.StructuredOutputs(choice=common_pb2.StructuredChoice(choices=["a", "b"]))
    response = inference_pb2.ResponseOptions(structured_outputs=form)
    messages = [inference_pb2.ChatMessage(role="user", content="x")]
    stopping = inference_pb2.StoppingOptions(max_tokens=2)
    chat = inference_pb2.ChatRequest(messages=messages, response=response, stopping=stopping)
    for call in (
        gateway.grpc.Generate(generate(response=response)),
        gateway.grpc.Chat(chat),
    ):
        assert [event async for event in call]
    for add in gateway.scheduler.adds:
        assert add.sampling_params.structured_outputs == form


async def test_a_form_without_content_is_refused_by_name(gateway: Gateway) -> None:
    response = inference_pb2.ResponseOptions(structured_outputs=common_pb2.StructuredOutputs())
    error = from_rpc_error(await refusal(gateway.grpc.Generate(generate(response=response))))
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "structured_outputs")
    assert gateway.scheduler.adds == []


async def test_a_form_that_the_engine_refuses_is_the_calls_status(gateway: Gateway) -> None:
    gateway.scheduler.refusal = scheduler_pb2.RequestError(
        code=3,
        reason="INVALID_GRAMMAR",
        message="regex: unclosed group",
        field="structured_outputs",
    )
    form = common_pb2.StructuredOutputs(regex="a(")
    response = inference_pb2.ResponseOptions(structured_outputs=form)
    error = from_rpc_error(await refusal(gateway.grpc.Generate(generate(response=response))))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_GRAMMAR")
    assert (error.message, error.field) == ("regex: unclosed group", "structured_outputs")
