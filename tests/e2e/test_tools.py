"""Tool calls and reasoning of the real model: what is forced is valid, streams say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI

from tests.e2e.completions import http_client, post
from tests.e2e.stack import Stack, start_stack
from tests.e2e.structured import chat

PATH = "/v1/chat/completions"
QUESTION = "What is the weather in Paris, in degrees Celsius?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "unit": {"enum": ["Celsius", "Fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["London", "Paris", "Rome"]}},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": SCHEMA,
        "strict": True,
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def ask(**options: Any) -> dict[str, Any]:
    return chat(QUESTION, tools=TOOLS, max_tokens=48) | options


def check_weather(call: dict[str, Any]) -> None:
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_forced_call_is_valid_and_a_stream_says_the_same(
    smollm2_stack: Stack, choice: Any
) -> None:
    body = ask(tool_choice=choice, parallel_tool_calls=False)
    async with http_client(smollm2_stack.http_url) as client:
        whole = (await post(client, PATH, body))["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
    if choice == NAMED or call["function"]["name"] != "get_time":
        check_weather(call)
    async with AsyncOpenAI(base_url=f"{smollm2_stack.http_url}/v1", api_key="none") as openai:
        pieces = [
            piece
            async for chunk in await openai.chat.completions.create(**body, stream=True)
            for piece in chunk.choices[0].delta.tool_calls or ()
        ]
    assert pieces[0].id and pieces[0].function.name == call["function"]["name"]
    arguments = "".join(piece.function.arguments for piece in pieces)
    assert arguments == call["function"]["arguments"]


async def test_one_of_the_allowed_tools_is_called(smollm2_stack: Stack) -> None:
    allowed = {"mode": "required", "tools": [NAMED]}
    body = ask(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    async with http_client(smollm2_stack.http_url) as client:
        whole = (await post(client, PATH, body | {"parallel_tool_calls": False}))["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    check_weather(call)


async def test_a_model_that_may_call_answers_one_way_or_the_other(smollm2_stack: Stack) -> None:
    """The embedded template knows no tools, so the default prompt describes them."""
    async with http_client(smollm2_stack.http_url) as client:
        plain = await post(client, PATH, chat(QUESTION, max_tokens=1))
        answer = await post(client, PATH, ask())
    assert answer["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 100
    choice = answer["choices"][0]
    message = choice["message"]
    assert message["content"] or message["tool_calls"]
    if choice["finish_reason"] == "tool_calls":
        # The tool is strict, so a call of it keeps to its schema.
        for call in message["tool_calls"]:
            if call["function"]["name"] == "get_weather":
                check_weather(call)


async def test_a_result_is_answered(smollm2_stack: Stack) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "Celsius"}'}
    messages = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "It is 23 degrees Celsius and sunny."},
    ]
    async with http_client(smollm2_stack.http_url) as client:
        answer = await post(client, PATH, ask(messages=messages, tool_choice="none"))
    assert "23" in answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def reasoning_stack() -> Iterator[Stack]:
    with start_stack(
        "--model=smollm2", "--reasoning-parser=qwen3", "--max-model-len=1024"
    ) as stack:
        yield stack


async def test_a_form_and_a_forced_call_stand_behind_reasoning_or_alone(
    reasoning_stack: Stack,
) -> None:
    """The model does not reason by itself; where its turn begins with a tag, it has to end it."""
    colours = {"choice": ["red", "blue"]}
    opened = [
        {"role": "user", "content": "Is the sky red or blue?"},
        {"role": "assistant", "content": "<think>The sky"},
    ]
    body = chat("", structured_outputs=colours, max_tokens=40, messages=opened)
    body |= {"continue_final_message": True}
    async with http_client(reasoning_stack.http_url) as client:
        alone = await post(
            client,
            PATH,
            chat("Is the sky red or blue?", structured_outputs=colours, max_tokens=40),
        )
        behind = (await post(client, PATH, body))["choices"][0]
        forced = await post(client, PATH, ask(tool_choice=NAMED))
    answer = alone["choices"][0]
    assert answer["message"]["content"] in colours["choice"] or answer["finish_reason"] == "length"
    # It thinks until it is cut off, or ends with one of the texts.
    assert behind["message"]["reasoning"]
    ended = behind["finish_reason"] == "stop"
    assert behind["message"]["content"] in (colours["choice"] if ended else [None])
    (call,) = forced["choices"][0]["message"]["tool_calls"]
    check_weather(call)
