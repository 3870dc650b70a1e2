"""How a request is computed changes no token of a real model, up to near-ties.

The reference is each request alone on the plainest stack: no overlap, no prefix cache, prompts in
one piece, a large pool, no drafts. Every other stack gives the same tokens, to the request alone
and among others (32, or few in the short form); what differs must have been a near-tie, by
`tests.parity`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pagewire.sampling_params import SamplingParams
from tests.e2e.closeness import smollm2_gap
from tests.e2e.completions import TokenRequest, one_by_one
from tests.e2e.held import at_once
from tests.e2e.stack import start_stack
from tests.e2e.switches import REFERENCE, Switches, covering
from tests.e2e.test_requests import is_idle, wait_for_load
from tests.parity import ParityReport

FLAGS = ("--model=smollm2", "--dtype=float32", "--batch-invariant", "--max-model-len=256")
NUM_TOGETHER = 33
FEW_TOGETHER = 12
TINY_POOL = 18
FEW = (
    Switches(overlap=True, caching=True, chunk=16, tiny_pool=True, speculation=True),
    Switches(overlap=True, caching=True, chunk=64, tiny_pool=False, speculation=False),
    Switches(overlap=False, caching=False, chunk=0, tiny_pool=True, speculation=True),
)
"""Each switch is on in one that differs from the reference, and off in another."""


def make_requests(number: int, max_tokens: int) -> list[TokenRequest]:
    rng = random.Random(61)
    common = random_ids(rng, 48)
    return [make_request(rng, index, common, max_tokens) for index in range(number)]


def make_request(
    rng: random.Random, index: int, common: Sequence[int], max_tokens: int
) -> TokenRequest:
    """Greedy and sampled in turns; the prompt repeats a phrase, or has a beginning in common."""
    if index % 3 == 0:
        prompt = random_ids(rng, rng.randint(8, 20)) * 4
    else:
        prompt = [*common, *random_ids(rng, rng.randint(4, 40))]
    params = SamplingParams(
        temperature=float(index % 2), top_p=0.9, seed=index, max_tokens=max_tokens, ignore_eos=True
    )
    return TokenRequest(tuple(prompt), params)


def make_others(number: int) -> list[TokenRequest]:
    rng = random.Random(62)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    return [TokenRequest(tuple(random_ids(rng, 10)), params) for _ in range(number)]


def random_ids(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(1000, 40_000) for _ in range(number)]


class Comparison:
    """Requests, what they get alone on the plainest stack, and what was compared with it."""

    def __init__(
        self,
        requests: Sequence[TokenRequest],
        expected: Sequence[list[int]],
        num_together: int,
    ) -> None:
        self.requests = requests
        self.report = ParityReport()
        self._expected = expected
        self._others = make_others(max(0, num_together - len(requests)))

    @classmethod
    async def start(cls, requests: Sequence[TokenRequest], num_together: int) -> Comparison:
        with start_stack(*FLAGS, *REFERENCE.flags(TINY_POOL)) as stack:
            expected = await one_by_one(stack.http_url, requests)
        lengths = [request.params.max_tokens for request in requests]
        assert [len(output) for output in expected] == lengths
        return cls(requests, expected, num_together)

    async def add(self, switches: Switches, *, alone: bool) -> None:
        """Compare with a stack of these switches: among others, and alone too."""
        with start_stack(*FLAGS, *switches.flags(TINY_POOL)) as stack:
            if alone:
                outputs = await one_by_one(stack.http_url, self.requests)
                self._compare(f"{switches} alone", outputs)
            outputs = await at_once(stack, [*self.requests, *self._others])
            self._compare(f"{switches}", outputs[: len(self.requests)])
            load = await wait_for_load(stack, is_idle)
        assert (load.num_preemptions > 0) == switches.tiny_pool
        assert (load.prefix_cache_hits > 0) == switches.caching

    def _compare(self, name: str, outputs: Sequence[list[int]]) -> None:
        for number, (request, actual, expected) in enumerate(
            zip(self.requests, outputs, self._expected, strict=True)
        ):
            self.report.compare(
                f"{name}: request {number}",
                actual,
                expected,
                lambda at, r=request, e=expected: smollm2_gap(r, e[:at]),  # type: ignore[misc]
            )


@pytest.mark.timeout(1800)
async def test_switches_change_no_token() -> None:
    comparison = await Comparison.start(make_requests(5, 12), FEW_TOGETHER)
    for switches in FEW:
        await comparison.add(switches, alone=False)
    comparison.report.check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_switches_change_no_token_alone_or_among_others() -> None:
    """Every pair of switches, and the reference's stack with others at the same time."""
    comparison = await Comparison.start(make_requests(24, 48), NUM_TOGETHER)
    for switches in (REFERENCE, *covering(2)):
        await comparison.add(switches, alone=True)
    comparison.report.check()


def test_the_few_settings_turn_every_switch_both_ways() -> None:
    for name in ("overlap", "caching", "tiny_pool", "speculation"):
        assert {getattr(switches, name) for switches in FEW} == {True, False}
    assert {switches.chunk for switches in FEW} == {16, 64, 0}
    assert all(replace(switches, chunk=0) != REFERENCE for switches in FEW)
