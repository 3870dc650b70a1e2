"""langchain-openai: `ChatOpenAI` as its users have it."""

from __future__ import annotations

from typing import Any, Literal

from cases import API_KEY, BASE_URL, CAPITAL_QUESTION, MODEL, WEATHER_QUESTION, run
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

llm = ChatOpenAI(
    model=MODEL, base_url=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=60, max_retries=0
)


class Verdict(BaseModel):
    """Whether it is so."""

    answer: Literal["yes", "no"]
    certain: bool


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather in a city."""
    return f"It is 23 degrees and sunny in {city}."


def invoke() -> Any:
    messages = [SystemMessage("Be brief."), HumanMessage(CAPITAL_QUESTION)]
    answer = llm.invoke(messages)
    return {
        "text": answer.content,
        "usage": answer.usage_metadata,
        "finish_reason": answer.response_metadata["finish_reason"],
        "streamed": [chunk.content for chunk in llm.stream(messages)],
    }


def batch() -> Any:
    questions = [CAPITAL_QUESTION, WEATHER_QUESTION]
    short = llm.bind(max_tokens=8)
    together = [answer.content for answer in short.batch(questions)]
    return {"together": together, "alone": [short.invoke(each).content for each in questions]}


def tools() -> Any:
    bound = llm.bind_tools([get_weather], tool_choice="get_weather")
    answer = bound.invoke(WEATHER_QUESTION)
    (call,) = answer.tool_calls
    whole = None
    for chunk in bound.stream(WEATHER_QUESTION):
        whole = chunk if whole is None else whole + chunk
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    final = llm.bind_tools([get_weather], tool_choice="none").invoke(
        [HumanMessage(WEATHER_QUESTION), answer, result]
    )
    return {
        "name": call["name"],
        "args": call["args"],
        "streamed_args": whole.tool_calls[0]["args"],
        "final": final.content,
    }


def structured() -> Any:
    methods: tuple[Any, ...] = ("json_schema", "function_calling")
    found = {}
    for method in methods:
        parsed = llm.with_structured_output(Verdict, method=method).invoke(
            "Is Paris the capital of France?"
        )
        found[method] = [type(parsed).__name__, parsed.answer in ("yes", "no")]
    return found


def responses() -> Any:
    by_responses = ChatOpenAI(
        model=MODEL,
        base_url=BASE_URL,
        api_key=API_KEY,
        temperature=0,
        max_tokens=60,
        use_responses_api=True,
    )
    answer = by_responses.invoke(CAPITAL_QUESTION)
    streamed = [chunk.text for chunk in by_responses.stream(CAPITAL_QUESTION)]
    return {"text": answer.text, "streamed": streamed}


def completion() -> Any:
    completer = OpenAI(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=6, max_retries=0
    )
    prompt = "The capital of France is"
    return {"text": completer.invoke(prompt), "streamed": list(completer.stream(prompt))}


run(invoke, batch, tools, structured, responses, completion)
