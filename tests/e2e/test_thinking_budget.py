"""A thinking budget ends the thinking where it should, however the tokens come to be.

Exactly so on the simulated worker, with drafts, at once with others and over the death of a worker;
on the embedded model with the form of an answer behind it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pagewire.sampling_params import SamplingParams, ThinkingBudget
from pagewire.v1 import common_pb2, inference_pb2
from tests.e2e.completions import TokenRequest, http_client, one_by_one, post, together
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.stack import start_stack
from tests.e2e.test_killed_under_load import run_and_kill
from worker_svc.sim.oracle import expected_tokens

NUM_TOKENS = 120
NUM_REQUESTS = 8
PARSER = "--reasoning-parser=qwen3"
NGRAM = ("--speculative-method=ngram", "--num-speculative-tokens=5")
SIM = ("--device=sim", "--sim-step-time-us=3000", PARSER)
EXACT = ("--model=smollm2", "--dtype=float32", "--batch-invariant", "--max-model-len=512", PARSER)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}


async def tag_token_ids(url: str) -> list[tuple[int, ...]]:
    """Of the opening tag and the closing one."""
    async with http_client(url) as client:
        answers = [
            await post(client, "/tokenize", {"prompt": tag, "add_special_tokens": False})
            for tag in ("<think>", "</think>")
        ]
    return [tuple(answer["tokens"]) for answer in answers]


def make_requests(start: tuple[int, ...], end: tuple[int, ...]) -> list[TokenRequest]:
    """Half of the prompts leave thinking open; outputs, of few tokens, begin it again and again."""
    requests = []
    for number in range(NUM_REQUESTS):
        num_open = number if number % 2 else None
        begun = () if num_open is None else (*start, *range(1, num_open + 1))
        most = (0, 3, 17, 40)[number // 2]
        params = SamplingParams(
            temperature=float(number // 4),
            seed=number,
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
            allowed_token_ids=(*start, 2000 + number),
            thinking_token_budget=most,
            thinking_budget=ThinkingBudget(most, start, end, num_open),
        )
        requests.append(TokenRequest((1000 + number, 1001, *begun), params))
    return requests


def grpc_request(request: TokenRequest) -> inference_pb2.GenerateRequest:
    params = request.params
    return inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=request.prompt),
        sampling=inference_pb2.SamplingOptions(
            temperature=params.temperature,
            seed=params.seed,
            allowed_token_ids=params.allowed_token_ids,
            thinking_token_budget=params.thinking_token_budget,
        ),
        stopping=inference_pb2.StoppingOptions(max_tokens=params.max_tokens, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )


def num_places(output: Sequence[int], tag: tuple[int, ...]) -> int:
    places = range(len(output) - len(tag) + 1)
    return sum(tuple(output[place : place + len(tag)]) == tag for place in places)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "drafts", [pytest.param((), marks=pytest.mark.slow), NGRAM], ids=["alone", "drafts"]
)
async def test_budgets_are_kept_exactly_with_drafts_together_and_after_a_kill(
    drafts: tuple[str, ...],
) -> None:
    with start_stack(*SIM, *drafts) as stack:
        start, end = await tag_token_ids(stack.http_url)
        requests = make_requests(start, end)
        expected = [
            expected_tokens(request.prompt, request.params, NUM_TOKENS, SIM_VOCABULARY)
            for request in requests
        ]
        num_forced = [num_places(output, end) for output in expected]
        assert all(num_forced[1::2]) and sum(num_forced) > NUM_REQUESTS
        assert await one_by_one(stack.http_url, requests[:2]) == expected[:2]
        assert await together(stack.http_url, requests) == expected
        streams = [grpc_request(request) for request in requests]
        assert await run_and_kill(stack, "worker_svc", streams) == expected


def chat(most: int) -> dict[str, Any]:
    """The model goes on with a turn in which it has begun to think; its answer has a form."""
    return {
        "model": "smollm2",
        "messages": [
            {"role": "user", "content": "What is the capital of Italy?"},
            {"role": "assistant", "content": "<think>The user wants to know"},
        ],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "thinking_token_budget": most,
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        "max_tokens": 80,
        "temperature": 0,
        "return_token_ids": True,
    }


async def answers(flags: tuple[str, ...]) -> list[dict[str, Any]]:
    with start_stack(*EXACT, *flags) as stack:
        async with http_client(stack.http_url) as client:
            return [
                (await post(client, "/v1/chat/completions", chat(most)))["choices"][0]
                for most in (0, 12)
            ]


@pytest.mark.timeout(600)
async def test_an_answer_of_a_form_follows_the_end_that_is_forced() -> None:
    at_once, later = await answers(NGRAM)
    assert not at_once["message"]["reasoning"]
    assert later["message"]["reasoning"]
    for choice in (at_once, later):
        assert json.loads(choice["message"]["content"])["city"] in ("Rome", "Paris")
        assert choice["finish_reason"] == "stop"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_drafts_change_no_answer_with_a_budget() -> None:
    plain, drafted = await answers(()), await answers(NGRAM)
    assert [each["token_ids"] for each in drafted] == [each["token_ids"] for each in plain]
