"""Structured outputs over HTTP: what to send, and what came back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import httpx
import jsonschema

from tests.e2e.completions import http_client, post
from tests.json_schemas import Schema, SchemaCase

FORMATS = ("email", "ipv4", "uuid")
"""Formats that the grammar enforces and the validator knows; dates have a check of their own."""
_CHECKER = jsonschema.FormatChecker(FORMATS)


@_CHECKER.checks("date", raises=ValueError)
def _is_date(value: object) -> bool:
    """RFC 3339 has a year 0000, a leap year, which Python's dates lack."""
    if isinstance(value, str):
        date.fromisoformat(f"0004{value[4:]}" if value.startswith("0000-") else value)
    return True


@dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str
    num_tokens: int


@dataclass(frozen=True)
class CaseReport:
    """Answers to schema cases, in their order, and the time for all of them."""

    cases: Sequence[SchemaCase]
    answers: Sequence[Answer]
    seconds: float

    @property
    def invalid(self) -> list[str]:
        """Complete answers that are not what their schema says, with the reason."""
        found = []
        for case, answer in zip(self.cases, self.answers, strict=True):
            error = why_invalid(answer.text, case.schema) if answer.finish_reason == "stop" else ""
            if error:
                found.append(f"{case.name}: {error}: {answer.text!r}")
        return found

    @property
    def ended_share(self) -> float:
        """Share of the answers that were complete within max_tokens."""
        return sum(answer.finish_reason == "stop" for answer in self.answers) / len(self.answers)

    def table(self) -> str:
        ends = Counter(answer.finish_reason for answer in self.answers)
        num_tokens = sum(answer.num_tokens for answer in self.answers)
        rows = [
            ("schemas", f"{len(self.cases)}"),
            *((f"ended by {reason}", f"{count}") for reason, count in sorted(ends.items())),
            ("complete and not valid", f"{len(self.invalid)}"),
            ("mean tokens", f"{num_tokens / len(self.cases):.1f}"),
            ("tokens/s", f"{num_tokens / self.seconds:.1f}"),
            ("seconds", f"{self.seconds:.1f}"),
        ]
        return "\n".join(f"{name:<24}{value:>10}" for name, value in rows)


def why_invalid(text: str, schema: Schema) -> str:
    """What is wrong with a text that should be JSON of a schema; empty: nothing."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=_CHECKER)
    wrong = next(validator.iter_errors(value), None)
    return wrong.message if wrong else ""


def chat(question: str, **options: Any) -> dict[str, Any]:
    """Body of a chat completion: greedy unless the options say otherwise."""
    messages = [{"role": "user", "content": question}]
    return {"model": "smollm2", "messages": messages, "temperature": 0, **options}


def case_body(case: SchemaCase, **options: Any) -> dict[str, Any]:
    return chat(case.question, response_format=schema_format(case.schema), **options)


def schema_format(schema: Schema) -> dict[str, Any]:
    """OpenAI's `response_format` for a schema."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


async def ask(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Answer:
    answer = await post(client, "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    num_tokens = answer["usage"]["completion_tokens"]
    return Answer(choice["message"]["content"], choice["finish_reason"], num_tokens)


async def stream(
    client: httpx.AsyncClient, body: Mapping[str, Any], first: asyncio.Event | None = None
) -> str:
    """Stream an answer to its end; say when its first text is there. Returns the text."""
    text = ""
    whole = dict(body) | {"stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=whole) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            # Between the events are empty lines and, while nothing comes, comments.
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += event["choices"][0]["delta"].get("content") or ""
            if text and first is not None:
                first.set()
    return text


async def ask_cases(
    url: str, cases: Sequence[SchemaCase], concurrency: int, **options: Any
) -> CaseReport:
    """Ask all cases, so many at a time; the seed of each is its number."""
    slots = asyncio.Semaphore(concurrency)
    started_s = time.perf_counter()

    async def ask_one(number: int, case: SchemaCase) -> Answer:
        async with slots:
            return await ask(client, case_body(case, seed=number, **options))

    async with http_client(url) as client:
        answers = await asyncio.gather(*(ask_one(n, case) for n, case in enumerate(cases)))
    return CaseReport(cases, answers, time.perf_counter() - started_s)
