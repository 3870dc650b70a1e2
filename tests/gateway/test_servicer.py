"""The public gRPC API, with fakes behind the gateway."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from gateway.message_config import MessageConfig
from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import common_pb2, inference_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL, NUM_CACHED_TOKENS
from tests.fakes.fake_tokenizer import BOS, EOS, VOCAB_SIZE, decode, encode
from tests.gateway.conftest import Gateway, GatewayFactory

CLIENT_GONE = common_pb2.ABORT_REASON_CLIENT_GONE
DEEP = '{"a":' * 300 + "1" + "}" * 300


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
            generate(response=inference_pb2.ResponseOptions(logprobs=21)),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            generate(sampling=inference_pb2.SamplingOptions(logit_bias={VOCAB_SIZE: 1.0})),
            grpc.StatusCode.INVALID_ARGUMENT,
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


async def test_every_sampling_field_reaches_the_engine(gateway: Gateway) -> None:
    sampling = inference_pb2.SamplingOptions(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        seed=5,
        logit_bias={ord("a"): 2.5},
        bad_words=["no"],
        allowed_token_ids=[ord("a"), ord("b")],
    )
    stopping = inference_pb2.StoppingOptions(max_tokens=4, min_tokens=2, stop_token_ids=[9])
    response = inference_pb2.ResponseOptions(logprobs=2, prompt_logprobs=1)
    request = generate(sampling=sampling, stopping=stopping, response=response)
    request.truncate_prompt_tokens = 2
    request.add_special_tokens = False
    assert [event async for event in gateway.grpc.Generate(request)]
    (add,) = gateway.scheduler.adds
    params = add.sampling_params
    assert decode(add.prompt_token_ids) == "bc"
    for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "seed"):
        assert getattr(params, name) == getattr(sampling, name)
    assert (list(params.logit_bias_token_ids), list(params.logit_bias_values)) == ([97], [2.5])
    assert list(params.allowed_token_ids) == [97, 98]
    assert bytes(params.bad_word_token_ids) == b"no no"
    assert (params.logprobs, params.prompt_logprobs, params.min_tokens) == (2, 1, 2)


async def test_logprobs_come_with_ids_and_bytes(gateway: Gateway) -> None:
    response = inference_pb2.ResponseOptions(logprobs=2, prompt_logprobs=0)
    events = [e async for e in gateway.grpc.Generate(generate("aé", 3, response=response))]
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    rows = inference_pb2.TokenLogprobs()
    for delta in deltas:
        rows.MergeFrom(delta.logprobs)
    assert bytes(rows.token_ids) == b"".join(rows.token_bytes) == "aé".encode()[::-1]
    assert list(rows.ranks) == [1, 1, 1] and list(rows.top_counts) == [2, 2, 2]
    assert list(rows.top_token_ids[:2]) == [rows.token_ids[0], rows.token_ids[0] + 1]
    assert rows.logprobs[0] == -0.5
    prompt = deltas[0].prompt_logprobs
    assert bytes(prompt.token_ids) == "aé".encode()
    assert not any(delta.HasField("prompt_logprobs") for delta in deltas[1:])


async def test_named_logprobs_come_in_the_place_of_the_likeliest(gateway: Gateway) -> None:
    response = inference_pb2.ResponseOptions(logprob_token_ids=[120, 7])
    events = [e async for e in gateway.grpc.Generate(generate("ab", 2, response=response))]
    rows = inference_pb2.TokenLogprobs()
    for event in events:
        rows.MergeFrom(event.delta.logprobs)
    (add,) = gateway.scheduler.adds
    assert list(add.sampling_params.logprob_token_ids) == [120, 7]
    assert not add.sampling_params.HasField("logprobs")
    assert bytes(rows.token_ids) == b"ba"
    assert list(rows.top_token_ids) == [120, 7] * 2
    assert list(rows.top_token_bytes) == [b"x", b"\x07"] * 2


async def test_a_conversation_has_parts_calls_tools_and_arguments(gateway: Gateway) -> None:
    part = inference_pb2.ContentPart
    call = inference_pb2.ToolCall(id="c1", name="f", arguments_json="{}")
    messages = [
        inference_pb2.ChatMessage(role="user", parts=[part(text="a"), part(text="b")]),
        inference_pb2.ChatMessage(role="assistant", reasoning="hm", tool_calls=[call]),
        inference_pb2.ChatMessage(role="tool", content="r", tool_call_id="c1"),
    ]
    tool = inference_pb2.Tool(name="f", parameters_json='{"type":"object"}')
    conversation: Any = {"messages": messages, "template_arguments_json": '{"x":1}'}
    request = inference_pb2.CountTokensRequest(**conversation, tools=[tool])
    count = await gateway.grpc.CountTokens(request)
    seen = gateway.tokenizer.requests[-1]
    assert [each.role for each in seen.messages] == ["user", "assistant", "tool"]
    assert seen.messages[0].content == "a\nb"
    assert not seen.messages[1].HasField("content")
    assert seen.messages[1].reasoning_content == "hm"
    assert json.loads(seen.messages[1].tool_calls_json) == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    assert seen.messages[2].tool_call_id == "c1"
    function = {"name": "f", "parameters": {"type": "object"}}
    assert json.loads(seen.tools_json) == [{"type": "function", "function": function}]
    assert seen.template_arguments_json == '{"x":1}'
    tokens = await gateway.grpc.Tokenize(
        inference_pb2.TokenizeRequest(**conversation, tools=[tool], return_token_texts=True)
    )
    assert count.num_tokens == len(tokens.token_ids) == len(tokens.token_texts)
    assert count.max_model_len == tokens.max_model_len == MAX_MODEL_LEN
    assert "".join(tokens.token_texts) == decode(tokens.token_ids)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x", "parts": [{"text": "y"}]}]},
            "messages[0].parts",
        ),
        ({"messages": [{"role": "user", "parts": [{}]}]}, "messages[0].parts[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            "messages[0].tool_calls[0].name",
        ),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "parameters_json": "[]"}]}, "tools[0].parameters_json"),
        ({"tools": [{"name": "f", "parameters_json": "{"}]}, "tools[0].parameters_json"),
        ({"tools": [{"name": "f", "parameters_json": DEEP}]}, "tools[0].parameters_json"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
async def test_what_is_no_conversation_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], field: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    error = from_rpc_error(
        await refusal(gateway.grpc.Chat(ParseDict(body, inference_pb2.ChatRequest())))
    )
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert gateway.scheduler.adds == []


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


async def test_a_thinking_budget_reaches_the_engine(run_gateway: GatewayFactory) -> None:
    async with run_gateway(messages=MessageConfig(reasoning_parser="qwen3")) as gateway:
        sampling = inference_pb2.SamplingOptions(thinking_token_budget=7)
        prompt = "<think>Hm"
        events = [e async for e in gateway.grpc.Generate(generate(prompt, 1, sampling=sampling))]
        assert events
        (add,) = gateway.scheduler.adds
        budget = add.sampling_params.thinking_budget
        assert (budget.max_tokens, budget.num_open_tokens) == (7, 2)
