"""anthropic: the Messages API with its own SDK, whole, streamed and through its stream helper."""

from __future__ import annotations

from typing import Any

import anthropic
from cases import API_KEY, BASE_URL, CAPITAL_QUESTION, MODEL, WEATHER_QUESTION, run

CLIENT = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=API_KEY, max_retries=0)
CAPITAL: Any = {
    "model": MODEL,
    "max_tokens": 30,
    "messages": [{"role": "user", "content": CAPITAL_QUESTION}],
    # No parameter of this SDK any more, but one of the API.
    "extra_body": {"temperature": 0},
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "get_weather", "description": "Tells the weather.", "input_schema": SCHEMA}]
FORCED: Any = {"type": "tool", "name": "get_weather"}


def text() -> Any:
    message = CLIENT.messages.create(**CAPITAL)
    with CLIENT.messages.stream(**CAPITAL) as stream:
        streamed = list(stream.text_stream)
        final = stream.get_final_message()
    return {
        "text": message.content[0].text,
        "stop_reason": message.stop_reason,
        "usage": [message.usage.input_tokens, message.usage.output_tokens],
        "cached": message.usage.cache_read_input_tokens,
        "streamed": streamed,
        "final": final.content[0].text,
        "final_stop_reason": final.stop_reason,
        "final_output_tokens": final.usage.output_tokens,
    }


def raw_events() -> Any:
    return [event.type for event in CLIENT.messages.create(**CAPITAL, stream=True)]


def stop_sequence() -> Any:
    message = CLIENT.messages.create(**CAPITAL, stop_sequences=["France"])
    return [message.stop_reason, message.stop_sequence, message.content[0].text]


def prefill() -> Any:
    begun = {"role": "assistant", "content": "The capital of France is"}
    messages = [*CAPITAL["messages"], begun]
    return CLIENT.messages.create(**CAPITAL | {"messages": messages}).content[0].text


def tools() -> Any:
    asked: Any = CAPITAL | {"messages": [{"role": "user", "content": WEATHER_QUESTION}]}
    message = CLIENT.messages.create(**asked, tools=TOOLS, tool_choice=FORCED)
    with CLIENT.messages.stream(**asked, tools=TOOLS, tool_choice=FORCED) as stream:
        streamed = stream.get_final_message()
    call = message.content[0]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "23 degrees, sunny"}
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    final = CLIENT.messages.create(**asked | {"messages": turns}, tools=TOOLS)
    return {
        "stop_reason": message.stop_reason,
        "name": call.name,
        "input": call.input,
        "streamed": streamed.content[0].input,
        "final": final.content[0].type,
    }


def several_tools_are_required() -> Any:
    asked: Any = CAPITAL | {"messages": [{"role": "user", "content": WEATHER_QUESTION}]}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    message = CLIENT.messages.create(**asked, tools=TOOLS, tool_choice=choice)
    return [[block.type, block.input] for block in message.content]


def count_tokens() -> Any:
    told = {name: CAPITAL[name] for name in ("model", "messages")}
    return CLIENT.messages.count_tokens(**told).input_tokens


def errors() -> Any:
    stranger = anthropic.Anthropic(
        base_url=BASE_URL.removesuffix("/v1"), api_key="wrong", max_retries=0
    )
    found = []
    for client, more in (
        (CLIENT, {"max_tokens": 0}),
        (CLIENT, {"model": "none"}),
        (stranger, {}),
    ):
        try:
            client.messages.create(**CAPITAL | more)
        except anthropic.APIStatusError as error:
            found.append([type(error).__name__, error.body["error"]["type"]])
    return found


run(
    text,
    raw_events,
    stop_sequence,
    prefill,
    tools,
    several_tools_are_required,
    count_tokens,
    errors,
)
