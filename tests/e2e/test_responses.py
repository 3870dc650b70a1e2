"""OpenAI's own client uses the Responses API of a whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.e2e.stack import Stack

MODEL = "smollm2"
QUESTION: Any = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Verdict(pydantic.BaseModel):
    """What a structured answer must be."""

    answer: Literal["yes", "no"]
    certain: bool


class Weather(pydantic.BaseModel):
    """Arguments of `get_weather`."""

    city: str


@pytest.fixture
def client(smollm2_stack: Stack) -> Iterator[openai.OpenAI]:
    url = f"{smollm2_stack.http_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as each:
        yield each


def test_a_stream_adds_up_to_the_whole_and_a_conversation_goes_on(client: openai.OpenAI) -> None:
    whole = client.responses.create(**QUESTION, max_output_tokens=40)
    assert "Paris" in whole.output_text
    with client.responses.stream(**QUESTION) as stream:
        streamed = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed"
    assert streamed == final.output_text
    again = client.responses.create(
        model=MODEL,
        input="And of Italy?",
        previous_response_id=final.id,
        temperature=0,
        max_output_tokens=40,
    )
    assert again.usage is not None and final.usage is not None
    assert again.usage.input_tokens > final.usage.input_tokens + final.usage.output_tokens
    assert client.responses.retrieve(again.id).output_text == again.output_text


def test_an_answer_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL,
        input="Is Paris the capital of France?",
        text_format=Verdict,
        temperature=0,
        max_output_tokens=60,
    )
    assert isinstance(response.output_parsed, Verdict)


def test_a_function_that_must_be_called_is_called(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="How is the weather in Paris?",
        tools=[FUNCTION],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
        max_output_tokens=60,
    )
    (call,) = response.output
    assert call.type == "function_call"
    assert Weather.model_validate_json(call.arguments).city
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answer = client.responses.create(
        model=MODEL,
        input=[output],
        previous_response_id=response.id,
        tools=[FUNCTION],
        tool_choice="none",
        temperature=0,
        max_output_tokens=20,
    )
    assert answer.output_text
