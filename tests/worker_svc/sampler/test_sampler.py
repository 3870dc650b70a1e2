from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.worker_svc.sampler.factories import make_batch, make_row
from worker_svc.sampler.device_sampler import DeviceSampler
from worker_svc.sampler.sampler import Sampler
from worker_svc.sampler.weights import inverse_cdf
from worker_svc.step import EMPTY_MASK, NAN_LOGITS

VOCAB_SIZE = 1000


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(eos_token_ids=(2,))


def random_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 3


def test_greedy_takes_the_largest_logit(sampler: Sampler) -> None:
    logits = random_logits(3)
    rows = [make_row(temperature=temperature) for temperature in (0.0, 1e-6, 0.0)]
    output = sampler.sample(logits.clone(), make_batch(rows))
    assert output.token_ids.tolist() == logits.argmax(-1).tolist()


def test_greedy_takes_the_first_of_equals(sampler: Sampler) -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[0, [700, 31, 500]] = 1.0
    output = sampler.sample(logits, make_batch([make_row(temperature=0.0)] * 2))
    assert output.token_ids.tolist() == [31, 0]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7, "top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampler: Sampler, params: dict[str, Any]) -> None:
    probabilities = torch.tensor([0.3, 0.02, 0.1, 0.25, 0.05, 0.2, 0.08])
    num_draws = 4000
    counts = np.zeros(len(probabilities))
    for index in range(num_draws):
        rows = [make_row(seed=11, output=[0] * index, **params)]
        token_ids = sampler.sample(probabilities.log()[None].clone(), make_batch(rows)).token_ids
        counts[token_ids[0]] += 1
    expected = expected_probabilities(probabilities.numpy().astype(np.float64), **params)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = (
        (counts[kept] - num_draws * expected[kept]) ** 2 / (num_draws * expected[kept])
    ).sum()
    assert chi_square < 22.5  # 0.1 % quantile of 6 degrees of freedom; the seeds are fixed.


def expected_probabilities(
    probabilities: np.ndarray[Any, np.dtype[np.float64]],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    scaled = probabilities ** (1 / temperature)
    scaled /= scaled.sum()
    scaled[scaled < min_p * scaled.max()] = 0.0
    order = np.argsort(-scaled)
    if top_k:
        scaled[order[top_k:]] = 0.0
    scaled /= scaled.sum()
    before = np.concatenate(([0.0], scaled[order].cumsum()[:-1]))
    scaled[order[before >= top_p]] = 0.0
    scaled /= scaled.sum()
    return scaled


def test_a_draw_does_not_depend_on_the_place_in_the_batch(sampler: Sampler) -> None:
    logits = random_logits(8)
    params: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 2, "top_k": 7},
        {"seed": 3, "top_p": 0.6},
        {"seed": 4, "min_p": 0.1, "presence_penalty": 1.0, "output": [5, 6]},
        {"seed": 1, "temperature": 0.3},
        {"seed": 1, "output": [9]},
        {"seed": 1, "min_tokens": 3},
    ]
    rows = [make_row(**row) for row in params]
    together = sampler.sample(logits.clone(), make_batch(rows)).token_ids.tolist()
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    shuffled = sampler.sample(
        logits[order].clone(), make_batch([rows[i] for i in order])
    ).token_ids.tolist()
    alone = [
        int(sampler.sample(logits[[i]].clone(), make_batch([rows[i]])).token_ids[0])
        for i in range(8)
    ]
    assert together == alone
    assert shuffled == [together[i] for i in order]


def test_seed_and_index_decide_the_draw(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)

    def draw(seed: int, index: int) -> int:
        row = make_row(seed=seed, output=[0] * index)
        return int(sampler.sample(logits.clone(), make_batch([row])).token_ids[0])

    # A flat distribution over 1,000 tokens shows the documented uniform's first three digits.
    assert (draw(42, 0), draw(42, 1), draw(42, 1000), draw(0, 0)) == (612, 987, 781, 399)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(
    sampler: Sampler, bad: float, temperature: float
) -> None:
    logits = random_logits(3)
    expected = sampler.sample(
        logits.clone(), make_batch([make_row(temperature=temperature)] * 3)
    ).token_ids
    logits[1, 77] = bad
    output = sampler.sample(logits, make_batch([make_row(temperature=temperature, logprobs=2)] * 3))
    assert list(output.failures) == [None, NAN_LOGITS, None]
    assert output.logprobs[1] is None
    assert output.token_ids[[0, 2]].tolist() == expected[[0, 2]].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", [Sampler, DeviceSampler])
def test_a_row_that_its_own_penalty_makes_infinite_fails_alone(
    kind: type[Sampler | DeviceSampler], temperature: float
) -> None:
    logits = random_logits(3)
    logits[1, 77] = 1e34
    rows = [make_row(temperature=temperature, top_p=0.9) for _ in range(3)]
    rows[1] = make_row(temperature=temperature, top_p=0.9, prompt=(77,), repetition_penalty=1e-6)
    output = kind(eos_token_ids=(2,)).sample(logits, make_batch(rows))
    assert list(output.failures) == [None, NAN_LOGITS, None]


def test_a_row_with_every_token_masked_fails_alone(sampler: Sampler) -> None:
    rows = [make_row(allowed_token_ids=(2,), min_tokens=1), make_row()]
    assert list(sampler.sample(random_logits(2), make_batch(rows)).failures) == [EMPTY_MASK, None]


def test_logprobs_are_those_before_penalties_and_temperature(sampler: Sampler) -> None:
    logits = random_logits(1)
    row = make_row(temperature=0.1, logprobs=2, logit_bias=((123, 100.0),))
    output = sampler.sample(logits.clone(), make_batch([row]))
    expected = torch.log_softmax(logits[0], -1)
    [logprobs] = output.logprobs
    assert output.token_ids.tolist() == [123]
    assert logprobs is not None
    assert logprobs.token_ids == [123, *logits[0].topk(2).indices.tolist()]
    assert logprobs.logprobs == [float(expected[i]) for i in logprobs.token_ids]
    assert logprobs.sampled_rank == int((logits[0] >= logits[0, 123]).sum())


class TestInverseCdf:
    WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0])

    @staticmethod
    def draw(weights: torch.Tensor, *uniforms: float) -> list[int]:
        cumulative = weights.cumsum(0, dtype=torch.float64).repeat(len(uniforms), 1)
        return inverse_cdf(cumulative, torch.tensor(uniforms, dtype=torch.float64)).tolist()

    def test_takes_the_first_token_in_vocabulary_order_that_exceeds_the_uniform(self) -> None:
        uniforms = (2.0**-53, 0.2499, 0.25, 0.7499, 0.75, 1 - 2.0**-53)
        assert self.draw(self.WEIGHTS, *uniforms) == [0, 0, 2, 2, 3, 3]

    def test_never_gives_a_token_without_weight(self) -> None:
        weights = torch.zeros(100)
        weights[[3, 50]] = torch.tensor([1.0, 1e-30])
        assert set(self.draw(weights, 2.0**-53, 0.5, 1 - 2.0**-53)) <= {3, 50}

    def test_scale_plays_no_part(self) -> None:
        uniforms = np.linspace(0.01, 0.99, 50).tolist()
        plain = self.draw(self.WEIGHTS, *uniforms)
        assert self.draw(self.WEIGHTS * 0.125, *uniforms) == plain
