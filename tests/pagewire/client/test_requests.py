"""Tests of the messages that clients send."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from pagewire.client.options import SamplingOptions
from pagewire.client.requests import (
    chat_request,
    count_tokens_request,
    generate_request,
    tokenize_request,
)
from pagewire.client.types import ChatMessage, Tool, ToolCall
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs
from pagewire.v1 import common_pb2, inference_pb2


def test_options_are_the_sampling_parameters_of_clients():
    assert {f.name for f in fields(SamplingParams)} - set(SamplingOptions.__annotations__) == {
        # What the gateway makes of bad_words and thinking_token_budget.
        "bad_words_token_ids",
        "thinking_budget",
    }


def test_only_what_is_given_is_sent():
    request, timeout = generate_request("Hi", {"temperature": 0, "max_tokens": None})
    filled = {field.name for field, value in request.ListFields() if value not in ("", None)}
    assert filled <= {"text", "sampling", "stopping", "response", "cache"}
    assert request.sampling == inference_pb2.SamplingOptions(temperature=0)
    assert not request.stopping.ListFields() and not request.response.ListFields()
    assert not request.cache.ListFields()
    assert timeout is None


def test_every_option_has_its_place():
    request, timeout = generate_request(
        [1, 2],
        {
            "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "presence_penalty": 1,
            "frequency_penalty": -1, "repetition_penalty": 1.1, "seed": -1, "max_tokens": 9,
            "min_tokens": 1, "stop": "x", "stop_token_ids": [7], "include_stop_str_in_output": True,
            "ignore_eos": True, "skip_special_tokens": False, "logprobs": 2, "prompt_logprobs": 1,
            "logit_bias": {5: -1.5}, "allowed_token_ids": [5, 6], "bad_words": ["no"],
            "structured_outputs": StructuredOutputs(choice=("a", "b")), "model": "m", "n": 2,
            "thinking_token_budget": -1,
            "cache_salt": "s", "priority": -3, "request_id": "r", "truncate_prompt_tokens": 10,
            "add_special_tokens": False, "timeout": 3.5,
        },
    )  # fmt: skip
    assert timeout == 3.5
    assert request == inference_pb2.GenerateRequest(
        model="m",
        token_ids=common_pb2.TokenIds(ids=[1, 2]),
        sampling=inference_pb2.SamplingOptions(
            temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, presence_penalty=1,
            frequency_penalty=-1, repetition_penalty=1.1, seed=2**64 - 1, n=2,
            logit_bias={5: -1.5}, bad_words=["no"], allowed_token_ids=[5, 6],
            thinking_token_budget=-1,
        ),
        stopping=inference_pb2.StoppingOptions(
            max_tokens=9, min_tokens=1, stop=["x"], stop_token_ids=[7],
            include_stop_str_in_output=True, ignore_eos=True,
        ),
        response=inference_pb2.ResponseOptions(
            return_token_ids=True, skip_special_tokens=False, logprobs=2, prompt_logprobs=1,
            structured_outputs=common_pb2.StructuredOutputs(
                choice=common_pb2.StructuredChoice(choices=["a", "b"])
            ),
        ),
        cache=inference_pb2.CacheOptions(salt="s"),
        request_id="r",
        priority=-3,
        truncate_prompt_tokens=10,
        add_special_tokens=False,
    )  # fmt: skip


def test_named_logprobs_want_the_ids_of_the_output_too():
    request, _ = generate_request("Hi", {"logprob_token_ids": [7, 3]})
    response = inference_pb2.ResponseOptions(return_token_ids=True, logprob_token_ids=[7, 3])
    assert request.response == response


def test_sampling_params_are_sent_as_they_are():
    params = SamplingParams(max_tokens=5, stop=("a",), logprobs=0)
    request, _ = generate_request("Hi", {"sampling_params": params})
    assert request.sampling.temperature == 1 and request.sampling.HasField("temperature")
    assert request.stopping.stop == ["a"] and request.response.return_token_ids
    with pytest.raises(TypeError, match="not both"):
        generate_request("Hi", {"sampling_params": params, "top_p": 0.5})


def test_an_unknown_option_is_named_with_what_may_be_meant():
    with pytest.raises(TypeError, match="'temprature'; did you mean 'temperature'"):
        generate_request("Hi", {"temprature": 0})


@pytest.mark.parametrize(
    ("options", "field"),
    [({"temperature": 3}, "temperature"), ({"stop": [""]}, "stop"), ({"top_p": "x"}, None),
     ({"n": "x"}, None), ({"n": -1}, None), ({"model": 5}, None)],
)  # fmt: skip
def test_wrong_values_are_refused_before_anything_is_sent(options, field):
    with pytest.raises(InvalidRequestError) as caught:
        generate_request("Hi", options)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", [None, 5, ["a"], [-1], [2**40], [1.5], "\ud800"])
def test_what_is_no_prompt_is_refused(prompt):
    with pytest.raises(InvalidRequestError) as caught:
        generate_request(prompt, {})
    assert caught.value.field == "prompt"


def test_no_token_ids_at_all_stay_token_ids():
    request, _ = generate_request([], {})
    assert request.WhichOneof("prompt") == "token_ids"


def test_conversations_come_in_three_forms():
    wanted = [inference_pb2.ChatMessage(role="user", content="Hi")]
    for conversation in ("Hi", [ChatMessage("user", "Hi")], [{"role": "user", "content": "Hi"}]):
        request, _ = chat_request(conversation, {})
        assert list(request.messages) == wanted


def test_a_conversation_carries_tools_calls_and_template_arguments():
    call = ToolCall("c1", "now", '{"zone": "CET"}')
    messages = [
        ChatMessage("assistant", tool_calls=[call], reasoning="hm"),
        ChatMessage("tool", "12:00", name="now", tool_call_id="c1"),
    ]
    request, _ = chat_request(
        messages,
        {
            "tools": [Tool("now", "The time.", {"type": "object"}), Tool("noop", strict=True)],
            "tool_choice": "now",
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    )
    assert request.messages[0].tool_calls[0].arguments_json == '{"zone": "CET"}'
    assert request.messages[0].reasoning == "hm" and request.messages[1].tool_call_id == "c1"
    assert [tool.parameters_json for tool in request.tools] == ['{"type": "object"}', ""]
    assert [tool.strict for tool in request.tools] == [False, True]
    assert request.tool_choice.function_name == "now"
    assert request.HasField("parallel_tool_calls") and not request.parallel_tool_calls
    assert json.loads(request.template_arguments_json) == {"enable_thinking": False}
    assert request.HasField("add_generation_prompt") and request.continue_final_message


@pytest.mark.parametrize("word", ["none", "auto", "required"])
def test_tool_choice_may_be_a_mode(word):
    request, _ = chat_request("Hi", {"tool_choice": word})
    name = inference_pb2.ToolChoiceMode.Name(request.tool_choice.mode)
    assert name == f"TOOL_CHOICE_MODE_{word.upper()}"


@pytest.mark.parametrize("message", [{"content": "Hi"}, {"role": "user", "images": []}])
def test_a_message_that_is_none_is_named(message):
    with pytest.raises(InvalidRequestError) as caught:
        chat_request([{"role": "user", "content": "Hi"}, message], {})
    assert caught.value.field == "messages[1]"


def test_tokens_are_asked_for_texts_and_conversations():
    text, _ = tokenize_request("Hi", {"add_special_tokens": False, "model": "m"})
    assert (text.text, text.model, text.HasField("add_special_tokens")) == ("Hi", "m", True)
    conversation, timeout = count_tokens_request(
        [ChatMessage("user", "Hi")], {"tools": [Tool("now")], "timeout": 1}
    )
    assert conversation.messages[0].content == "Hi" and conversation.tools[0].name == "now"
    assert timeout == 1
