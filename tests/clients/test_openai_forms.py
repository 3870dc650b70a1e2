"""OpenAI's Python client, as it is: structured outputs and tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.clients.served import API_KEY, MODEL, Served

CHAT: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "temperature": 0,
    "max_tokens": 60,
}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


class GetWeather(pydantic.BaseModel):
    """Tells the weather in a city."""

    city: Literal["Paris", "Rome", "London"]
    unit: Literal["celsius", "fahrenheit"]


class Verdict(pydantic.BaseModel):
    """What an answer must be."""

    answer: Literal["yes", "no"]
    certain: bool
    places: list[Literal["Paris", "France"]] = pydantic.Field(max_length=2)


TOOL: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.base_url, api_key=API_KEY, max_retries=0) as each:
        yield each


def test_an_answer_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**CHAT, response_format=Verdict)
    message = answer.choices[0].message
    assert isinstance(message.parsed, Verdict)
    assert message.parsed == Verdict.model_validate_json(message.content or "")


def test_a_streamed_answer_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**CHAT, response_format=Verdict) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message
    assert "content.delta" in kinds and kinds[-1] == "content.done"
    assert final.parsed == Verdict.model_validate_json(final.content or "")


def test_any_json_object(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object"}
    messages: Any = [{"role": "user", "content": 'Answer with {"capital": "Paris"} in JSON.'}]
    body = CHAT | {"messages": messages}
    answer = client.chat.completions.create(**body, response_format=form).choices[0]
    assert isinstance(json.loads(answer.message.content or ""), dict)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_is_parsed_and_a_stream_says_the_same(
    client: openai.OpenAI, choice: Any
) -> None:
    options = {**CHAT, "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    (whole,) = client.chat.completions.parse(**options).choices
    (call,) = whole.message.tool_calls or ()
    assert whole.finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert isinstance(call.function.parsed_arguments, GetWeather)
    with client.chat.completions.stream(**options) as stream:
        events = list(stream)
        (final,) = stream.get_final_completion().choices
    assert final.finish_reason == "tool_calls"
    (streamed,) = final.message.tool_calls or ()
    assert streamed.function == call.function
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == call.function.arguments
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done.parsed_arguments == call.function.parsed_arguments


def test_a_result_is_answered(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(**CHAT, tools=[TOOL], tool_choice=NAMED)
    message = asked.choices[0].message
    (call,) = message.tool_calls or ()
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is 23 degrees and sunny."}
    messages: Any = [*CHAT["messages"], message, result]
    answer = client.chat.completions.create(
        **CHAT | {"messages": messages}, tools=[TOOL], tool_choice="none"
    ).choices[0]
    assert "23" in (answer.message.content or "") and not answer.message.tool_calls
