"""litellm: its functions with the provider `openai` (and `hosted_vllm`) at our address."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import openai
from cases import API_KEY, BASE_URL, CAPITAL_QUESTION, MODEL, WEATHER_QUESTION, run

litellm.telemetry = False

TO: Any = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0}
CHAT: Any = {
    **TO,
    "messages": [{"role": "user", "content": CAPITAL_QUESTION}],
    "temperature": 0,
    "max_tokens": 30,
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def completion() -> Any:
    answer = litellm.completion(**CHAT)
    chunks = list(litellm.completion(**CHAT, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    return {
        "text": answer.choices[0].message.content,
        "finish_reason": answer.choices[0].finish_reason,
        "usage": answer.usage.total_tokens,
        "streamed": deltas,
        "streamed_usage": chunks[-1].usage.total_tokens,
        "rebuilt": litellm.stream_chunk_builder(chunks).choices[0].message.content,
    }


def hosted_vllm() -> Any:
    """The provider for vLLM's servers, with a field that only they know."""
    told = CHAT | {"model": f"hosted_vllm/{MODEL}", "temperature": 2.0}
    return litellm.completion(**told, extra_body={"top_k": 1}).choices[0].message.content


def several_at_once() -> Any:
    async def gather() -> list[Any]:
        return await asyncio.gather(*(litellm.acompletion(**CHAT) for _ in range(3)))

    return [answer.choices[0].message.content for answer in asyncio.run(gather())]


def text_completion() -> Any:
    told = TO | {"model": f"text-completion-openai/{MODEL}", "temperature": 0, "max_tokens": 6}
    prompt = "The capital of France is"
    streamed = litellm.text_completion(**told, prompt=prompt, stream=True)
    return {
        "text": litellm.text_completion(**told, prompt=prompt).choices[0].text,
        "streamed": [chunk.choices[0].text or "" for chunk in streamed],
    }


def tools() -> Any:
    ask = CHAT | {"messages": [{"role": "user", "content": WEATHER_QUESTION}], "max_tokens": 60}
    answer = litellm.completion(**ask, tools=[TOOL], tool_choice=NAMED).choices[0]
    (call,) = answer.message.tool_calls
    return {
        "finish_reason": answer.finish_reason,
        "name": call.function.name,
        "arguments": call.function.arguments,
    }


def structured() -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return litellm.completion(**CHAT, response_format=form).choices[0].message.content


def responses() -> Any:
    answer = litellm.responses(**TO, input=CAPITAL_QUESTION, temperature=0, max_output_tokens=30)
    return answer.output[0].content[0].text


def errors() -> Any:
    found = []
    for changed in ({"temperature": -1}, {"model": "openai/gpt-9"}, {"api_key": "wrong"}):
        try:
            litellm.completion(**CHAT | changed)
        except openai.APIStatusError as error:
            found.append(type(error).__name__)
    return found


run(
    completion,
    hosted_vllm,
    several_at_once,
    text_completion,
    tools,
    structured,
    responses,
    errors,
)
