"""Drafts from the prompt's own text: fewer steps, and the same tokens.

Load figures of the scheduler say how many steps the tokens took.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest, http_client, one_by_one, post, together
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.stack import Stack, start_stack
from tests.e2e.structured import case_body, chat
from tests.e2e.test_requests import is_idle, wait_for_load
from tests.json_schemas import make_cases
from worker_svc.sim.oracle import expected_tokens

NUM_SIM_TOKENS = 200
NGRAM = ("--speculative-method=ngram", "--num-speculative-tokens=5")
EXACT = ("--model=smollm2", "--dtype=float32", "--batch-invariant", "--max-model-len=1024")
TEXT = (
    "The lighthouse stands on a narrow rock at the end of the bay, and its keeper has lived "
    "there for thirty years. Every morning he climbs the stairs, cleans the glass, and writes"
    " the weather into a thick blue book. In spring the ships come from the north with timber"
    " and iron. In summer they bring oranges, wine and letters from the islands. In autumn "
    "the storms begin, and then nobody comes at all. The keeper does not mind. He has a dog, "
    "a stove, a shelf of old novels and a small garden behind the wall, where he grows beans "
    "and onions. On Sundays his sister rows over from the village with bread, cheese and the "
    "news of the week. They drink tea, play cards until the light is lit, and say little. "
    "When the fog is thick he sounds the horn twice every minute, all night long, and sleeps "
    "the next day until noon. He has never once wished to live anywhere else, and he keeps a "
    "list of all the birds that he has seen."
)
"""About 200 tokens."""
SHORT_TEXT = TEXT[: TEXT.index(" In spring")]
"""About 50."""


def repeat(text: str, max_tokens: int) -> dict[str, Any]:
    """A chat whose answer is most likely the text."""
    return {
        "model": "smollm2",
        "messages": [
            {"role": "user", "content": f"Repeat this text: {text}"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Repeat it once more."},
        ],
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
    }


@dataclass(frozen=True)
class Run:
    """Token ids of the requests, and the engine's steps and tokens for all of them."""

    token_ids: list[list[int]]
    num_steps: int
    num_tokens: int

    @property
    def tokens_per_step(self) -> float:
        return self.num_tokens / self.num_steps


async def run_chats(stack: Stack, bodies: list[dict[str, Any]]) -> Run:
    """All at once."""
    before = await wait_for_load(stack, is_idle)
    async with http_client(stack.http_url) as client:
        posts = (post(client, "/v1/chat/completions", body) for body in bodies)
        answers = await asyncio.gather(*posts)
    after = await wait_for_load(stack, is_idle)
    return Run(
        [answer["choices"][0]["token_ids"] for answer in answers],
        after.num_steps - before.num_steps,
        after.generation_tokens - before.generation_tokens,
    )


def other_bodies(max_tokens: int) -> list[dict[str, Any]]:
    """Structured, sampled and penalized requests, which drafts must not change either."""
    options = {"max_tokens": max_tokens, "return_token_ids": True}
    sampled = {"temperature": 1, "top_p": 0.9, "seed": 5}
    penalized = {"frequency_penalty": 0.5, "repetition_penalty": 1.2}
    return [
        *(case_body(case, **options) for case in make_cases(3)),
        chat(f"Repeat: {TEXT[:200]}", **options | sampled),
        chat(f"Repeat: {TEXT[:200]}", **options | penalized),
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("text", "num_tokens", "num_other_tokens"),
    [(SHORT_TEXT, 40, 16), pytest.param(TEXT, 180, 40, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
async def test_a_repeated_text_takes_less_than_half_the_steps_and_has_the_same_tokens(
    text: str, num_tokens: int, num_other_tokens: int
) -> None:
    body, others = repeat(text, num_tokens + 80), other_bodies(num_other_tokens)
    with start_stack(*EXACT) as stack:
        plain = await run_chats(stack, [body])
        plain_others = await run_chats(stack, others)
    with start_stack(*EXACT, *NGRAM) as stack:
        drafted = await run_chats(stack, [body])
        drafted_others = await run_chats(stack, others)
    assert plain.tokens_per_step <= 1
    assert len(plain.token_ids[0]) > num_tokens
    assert drafted.token_ids == plain.token_ids
    assert drafted.num_tokens == plain.num_tokens
    assert drafted.tokens_per_step > 2
    assert drafted_others.token_ids == plain_others.token_ids


def sim_requests(num_allowed: int) -> list[TokenRequest]:
    """From so few tokens each that drafts are always right (1), or sometimes."""
    return [
        TokenRequest(
            (1000 + number, 1001, 1002),
            SamplingParams(
                temperature=float(number % 2),
                seed=number,
                max_tokens=NUM_SIM_TOKENS,
                ignore_eos=True,
                allowed_token_ids=tuple(range(2000 + number, 2000 + number + num_allowed)),
            ),
        )
        for number in range(8)
    ]


@pytest.mark.parametrize("overlap", ["--async-scheduling", "--no-async-scheduling"])
async def test_right_and_wrong_drafts_change_nothing_and_right_ones_save_steps(
    overlap: str,
) -> None:
    with start_stack("--device=sim", *NGRAM, overlap) as stack:
        constant = await sim_steps(stack, sim_requests(1))
        varied = await sim_steps(stack, sim_requests(2))
    assert constant < 0.3 * 8 * NUM_SIM_TOKENS
    assert varied < 8 * NUM_SIM_TOKENS


async def sim_steps(stack: Stack, requests: list[TokenRequest]) -> int:
    """Steps that the requests take one by one; their tokens are right then and all together."""
    expected = [
        expected_tokens(request.prompt, request.params, NUM_SIM_TOKENS, SIM_VOCABULARY)
        for request in requests
    ]
    before = await wait_for_load(stack, is_idle)
    assert await one_by_one(stack.http_url, requests) == expected
    after = await wait_for_load(stack, is_idle)
    assert await together(stack.http_url, requests) == expected
    return after.num_steps - before.num_steps
