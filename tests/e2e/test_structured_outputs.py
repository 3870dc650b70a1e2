"""Structured outputs of a real model: what ends is valid, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.completions import http_client
from tests.e2e.stack import Stack, start_stack
from tests.e2e.structured import (
    Answer,
    CaseReport,
    ask,
    ask_cases,
    case_body,
    chat,
    schema_format,
    stream,
    why_invalid,
)
from tests.json_schemas import SchemaCase, make_cases

MAX_TOKENS = 400
MIN_ENDED_SHARE = 0.9
SAMPLING = {"temperature": 0.7, "max_tokens": MAX_TOKENS}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack("--model=smollm2", "--max-model-len=1024") as stack:
        yield stack


def check_report(report: CaseReport) -> None:
    assert report.invalid == []
    assert {answer.finish_reason for answer in report.answers} <= {"stop", "length"}
    assert report.ended_share >= MIN_ENDED_SHARE, report.table()


@pytest.mark.timeout(600)
async def test_answers_to_10_schemas_are_valid(stack: Stack) -> None:
    check_report(await ask_cases(stack.http_url, make_cases(10), 10, **SAMPLING))


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_answers_to_300_schemas_are_valid(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    report = await ask_cases(stack.http_url, make_cases(300), 32, **SAMPLING)
    with capsys.disabled():
        print(f"\n{report.table()}")
    check_report(report)


async def ask_one(stack: Stack, body: dict[str, Any]) -> Answer:
    async with http_client(stack.http_url) as client:
        return await ask(client, body)


async def test_a_regular_expression_is_matched_as_a_whole(stack: Stack) -> None:
    pattern = r"\+[0-9]{2} [0-9]{3}-[0-9]{4}"
    body = chat(
        "Invent a phone number.", structured_outputs={"regex": pattern}, max_tokens=MAX_TOKENS
    )
    answer = await ask_one(stack, body)
    assert answer.finish_reason == "stop"
    assert re.fullmatch(pattern, answer.text)


async def test_a_choice_is_one_of_the_texts(stack: Stack) -> None:
    choices = ["Madrid", "Paris", "Rome", "Rome or Paris"]
    body = chat(
        "What is the capital of France?", structured_outputs={"choice": choices}, max_tokens=20
    )
    answer = await ask_one(stack, body)
    assert (answer.text, answer.finish_reason) == ("Paris", "stop")


async def test_a_grammar_is_followed(stack: Stack) -> None:
    grammar = 'start: "SELECT " NAME " FROM " NAME ";"\nNAME: /[a-z]{3,12}/\n'
    body = chat(
        "Write SQL that reads all names from the table of users.",
        structured_outputs={"grammar": grammar},
        max_tokens=MAX_TOKENS,
    )
    answer = await ask_one(stack, body)
    assert answer.finish_reason == "stop"
    assert re.fullmatch("SELECT [a-z]{3,12} FROM [a-z]{3,12};", answer.text)


TAGS = {
    "type": "sequence",
    "elements": [
        {
            "type": "tag",
            "begin": "<city>",
            "content": {"type": "regex", "pattern": "[A-Z][a-z]{2,11}"},
            "end": "</city>",
        },
        {
            "type": "tag",
            "begin": "<facts>",
            "content": {
                "type": "json_schema",
                "json_schema": {"enum": [{"capital": True}, {"capital": False}]},
            },
            "end": "</facts>",
        },
    ],
}


async def test_a_structural_tag_is_followed(stack: Stack) -> None:
    question = "What is the capital of France?"
    form = {"type": "structural_tag", "format": TAGS}
    answer = await ask_one(stack, chat(question, max_tokens=60, response_format=form))
    assert answer.finish_reason == "stop"
    pattern = r'<city>[A-Z][a-z]{2,11}</city><facts>\{"capital": (true|false)\}</facts>'
    assert re.fullmatch(pattern, answer.text)


async def test_any_json_object(stack: Stack) -> None:
    body = chat(
        "Give the name and the capital of France as a small JSON object.",
        response_format={"type": "json_object"},
        max_tokens=MAX_TOKENS,
    )
    answer = await ask_one(stack, body)
    assert answer.finish_reason == "stop"
    assert isinstance(json.loads(answer.text), dict)


BAD_FORMS = {
    "schema": {"response_format": schema_format({"type": "no such type"})},
    "regex": {"structured_outputs": {"regex": "(unclosed"}},
    "grammar": {"structured_outputs": {"grammar": "start: undefined_rule"}},
    "structural_tag": {"response_format": {"type": "structural_tag", "format": {"type": "x"}}},
}


@pytest.mark.parametrize("kind", BAD_FORMS)
async def test_a_bad_grammar_is_the_clients_error_and_8_streams_go_on(
    sim_stack: Stack, kind: str
) -> None:
    bodies = [chat(f"Tell me a story about {n} cats.", max_tokens=300, seed=n) for n in range(8)]
    for body in bodies:
        body["ignore_eos"] = True
    async with http_client(sim_stack.http_url) as client:
        undisturbed = await asyncio.gather(*(stream(client, body) for body in bodies))
        firsts = [asyncio.Event() for _ in bodies]
        tasks = [
            asyncio.create_task(stream(client, body, first))
            for body, first in zip(bodies, firsts, strict=True)
        ]
        await asyncio.gather(*(first.wait() for first in firsts))
        response = await client.post("/v1/chat/completions", json=chat("Hi", **BAD_FORMS[kind]))
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert await asyncio.gather(*tasks) == undisturbed


def slow_schema(number: int) -> dict[str, Any]:
    """Every way to choose one of two in seven groups is a case: about 0.1 s of compilation."""
    groups = [[f"g{number}_{group}_{n}" for n in range(2)] for group in range(7)]
    return {
        "allOf": [
            {"anyOf": [{"properties": {name: {"type": "null"}}, "required": [name]} for name in g]}
            for g in groups
        ]
    }


async def test_grammars_that_compile_slowly_hold_up_nobody_else() -> None:
    """Plain requests that come after slow grammars end before them."""
    flags = ("--grammar-compile-threads=1", "--grammar-compile-timeout-s=100")
    with start_stack("--device=sim", *flags) as stack:
        async with http_client(stack.http_url) as client:
            slow = [asyncio.create_task(ask_slow(client, number)) for number in range(40)]
            plain = [ask(client, chat(f"Hello {n}", max_tokens=20)) for n in range(8)]
            await asyncio.gather(*plain)
            assert not all(task.done() for task in slow)
            assert [answer.finish_reason for answer in await asyncio.gather(*slow)]


async def ask_slow(client: httpx.AsyncClient, number: int) -> Answer:
    body = chat("Hi", response_format=schema_format(slow_schema(number)), max_tokens=20)
    return await ask(client, body)


@pytest.fixture(scope="module")
def exact_stack() -> Iterator[Stack]:
    flags = ("--dtype=float32", "--batch-invariant", "--max-model-len=512")
    with start_stack("--model=smollm2", *flags) as stack:
        yield stack


async def run_and_kill(stack: Stack, module: str, cases: list[SchemaCase]) -> list[str]:
    """Kill the process once every stream has text; return the streams' texts."""
    firsts = [asyncio.Event() for _ in cases]
    async with http_client(stack.http_url) as client:
        tasks = [
            asyncio.create_task(stream(client, case_body(case, max_tokens=60), first))
            for case, first in zip(cases, firsts, strict=True)
        ]
        await asyncio.gather(*(first.wait() for first in firsts))
        assert not all(task.done() for task in tasks)
        stack.child(module).kill()
        return list(await asyncio.gather(*tasks))


@pytest.mark.timeout(900)
async def test_a_process_killed_under_structured_requests_changes_nothing(
    exact_stack: Stack,
) -> None:
    cases = make_cases(6)
    async with http_client(exact_stack.http_url) as client:
        bodies = [case_body(case, max_tokens=60) for case in cases]
        undisturbed = await asyncio.gather(*(ask(client, body) for body in bodies))
    texts = [answer.text for answer in undisturbed]
    ended = [n for n, answer in enumerate(undisturbed) if answer.finish_reason == "stop"]
    assert len(ended) >= 3
    assert [why_invalid(texts[n], cases[n].schema) for n in ended] == [""] * len(ended)
    for module in ("worker_svc", "scheduler_svc"):
        assert await run_and_kill(exact_stack, module, cases) == texts
