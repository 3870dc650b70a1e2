"""instructor: answers as pydantic models, in its modes."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from cases import API_KEY, BASE_URL, MODEL, run
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

QUESTION = 'What is the capital of France? Answer like this: {"city": "Rome"}'


class City(BaseModel):
    """A city that a text speaks of."""

    # As the schema says it, what is not named here may come beside it.
    model_config = ConfigDict(extra="forbid")

    name: Literal["Paris", "Rome"]
    capital: bool
    tags: list[Literal["old", "big"]] = Field(max_length=2)


# Without a docstring: it would be one thing more in the schema that a small model repeats.
class Capital(BaseModel):
    city: str


def ask(mode: instructor.Mode) -> Any:
    plain = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    client = instructor.from_openai(plain, mode=mode)
    create = client.chat.completions.create_with_completion
    return create(
        model=MODEL,
        messages=[{"role": "user", "content": "Paris is the capital of France."}],
        response_model=City,
        temperature=0,
        max_tokens=80,
        max_retries=0,
    )


def tools() -> Any:
    parsed, raw = ask(instructor.Mode.TOOLS)
    return {"city": parsed.model_dump(), "finish_reason": raw.choices[0].finish_reason}


def json_schema() -> Any:
    parsed, raw = ask(instructor.Mode.JSON_SCHEMA)
    return {"city": parsed.model_dump(), "text": raw.choices[0].message.content}


def json_object() -> Any:
    """The mode asks for any JSON object, and for the fields in words only."""
    plain = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON)
    parsed = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Capital,
        temperature=0,
        max_tokens=60,
        max_retries=0,
    )
    return parsed.city


def partial() -> Any:
    plain = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    parts = client.chat.completions.create_partial(
        model=MODEL,
        messages=[{"role": "user", "content": "Paris is the capital of France."}],
        response_model=City,
        temperature=0,
        max_tokens=80,
    )
    found = [part.model_dump() for part in parts]
    return {"num_parts": len(found), "city": found[-1]}


run(tools, json_schema, json_object, partial)
