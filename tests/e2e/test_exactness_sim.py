"""How a request is computed changes no token: through four processes, on the simulated worker.

Each stack has one setting of the switches. Its requests run one at a time, then all together, and
get what the oracle says; greedy and sampled, long prompts and short ones, some with a beginning in
common. Most may only draw from one to three tokens, so that drafts from their own past are
sometimes right and sometimes wrong.
"""

from __future__ import annotations

import random

import pytest

from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest, one_by_one
from tests.e2e.held import at_once
from tests.e2e.requests import SIM_VOCABULARY
from tests.e2e.stack import start_stack
from tests.e2e.switches import ALL, Switches, covering, settings
from tests.e2e.test_requests import is_idle, wait_for_load
from worker_svc.sim.oracle import expected_output

NUM_REQUESTS = 33
NUM_ALONE = 9
TINY_POOL = 24
"""Blocks: of 16 tokens, for requests of up to 240."""
FLAGS = ("--device=sim", "--max-model-len=256")
FEW = tuple(covering(2))


def make_requests() -> list[TokenRequest]:
    rng = random.Random(33)
    common = [rng.randrange(1000, 40_000) for _ in range(100)]
    return [make_request(rng, number, common) for number in range(NUM_REQUESTS)]


def make_request(rng: random.Random, number: int, common: list[int]) -> TokenRequest:
    """Every second one is sampled; most have few tokens to draw from."""
    own = [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 80))]
    allowed = rng.sample(range(1000, 40_000), number // 2 % 4)
    params = SamplingParams(
        temperature=float(number % 2),
        top_p=0.9,
        seed=number,
        max_tokens=rng.randint(20, 60),
        allowed_token_ids=tuple(allowed),
        stop_token_ids=tuple(range(1000, 1128)),
    )
    return TokenRequest((*common[: rng.choice([0, 40, 100])], *own), params)


def alone(request: TokenRequest) -> list[int]:
    limit = request.params.max_tokens or 0
    return expected_output(request.prompt, request.params, limit, SIM_VOCABULARY)


async def check(switches: Switches) -> None:
    requests = make_requests()
    expected = [alone(request) for request in requests]
    with start_stack(*FLAGS, *switches.flags(TINY_POOL)) as stack:
        assert await one_by_one(stack.http_url, requests[:NUM_ALONE]) == expected[:NUM_ALONE]
        load = await wait_for_load(stack, is_idle)
        assert (load.num_steps < load.generation_tokens) == switches.speculation
        assert await at_once(stack, requests) == expected
        load = await wait_for_load(stack, is_idle)
    assert (load.num_preemptions > 0) == switches.tiny_pool
    assert (load.prefix_cache_hits > 0) == switches.caching
    assert load.kv_cache_usage == 0


@pytest.mark.parametrize("switches", FEW, ids=str)
async def test_tokens_are_those_of_the_request_alone(switches: Switches) -> None:
    await check(switches)


@pytest.mark.slow
@pytest.mark.parametrize("switches", [each for each in ALL if each not in FEW], ids=str)
async def test_tokens_are_those_of_the_request_alone_in_all_other_settings(
    switches: Switches,
) -> None:
    await check(switches)


def test_the_few_settings_have_every_pair() -> None:
    assert set().union(*(settings(each, 2) for each in ALL)) == set().union(
        *(settings(each, 2) for each in FEW)
    )


def test_requests_end_in_every_way_and_with_repetitions() -> None:
    requests = make_requests()
    outputs = [alone(request) for request in requests]
    ends_early = [
        len(output) < (request.params.max_tokens or 0)
        for request, output in zip(requests, outputs, strict=True)
    ]
    assert {True, False} == set(ends_early)
    assert any(len(set(output)) <= 3 < len(output) for output in outputs)
