"""Tokens that are chosen without logits are those of the largest logits, in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.models.test_packed_llama import load, prompts, write
from tests.worker_svc.step_driver import StepDriver
from worker_svc.model_runner import ModelRunner
from worker_svc.models.packed_llama import PackedLlama
from worker_svc.step import EMPTY_MASK, NAN_LOGITS, RowFailure

GREEDY = SamplingParams(temperature=0.0)
TYPES = ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16"]


def model_of(runner: ModelRunner) -> PackedLlama:
    model = runner._require_loaded().model
    assert isinstance(model, PackedLlama)
    return model


@pytest.mark.parametrize("vocabulary_type", TYPES)
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("vocab_size", [203, 2500])
def test_largest_logits(
    tmp_path: Path, vocabulary_type: str, num_threads: int, vocab_size: int
) -> None:
    path = write(tmp_path, "llama", "Q4_1", vocabulary_type, vocab_size=vocab_size)
    model = model_of(load(path, num_threads=num_threads))
    # One row, rows that are no whole blocks of tokens, and more than one product takes.
    for num_rows in (1, 2, 5, 13, 64, 128, 131):
        states = torch.randn(num_rows, model.config.hidden_size)
        logits = model.compute_logits(states).numpy().copy()
        token_ids, largest = model.choose_greedily(states)
        assert token_ids.tolist() == logits.argmax(axis=1).tolist()
        assert largest.tolist() == logits.max(axis=1).tolist()


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_of_equal_logits_the_lowest_id_counts(tmp_path: Path, num_threads: int) -> None:
    path = write(tmp_path, "llama", "Q4_1", "Q8_0", vocab_size=2500)
    model = model_of(load(path, num_threads=num_threads))
    states = torch.zeros(7, model.config.hidden_size)  # all logits are zero
    for _ in range(20):
        token_ids, largest = model.choose_greedily(states)
        assert token_ids.tolist() == [0] * 7
        assert largest.tolist() == [0.0] * 7


def test_a_row_of_nan_is_told_and_harms_no_other(tmp_path: Path) -> None:
    model = model_of(load(write(tmp_path)))
    states = torch.randn(6, model.config.hidden_size)
    expected = model.choose_greedily(states)[0].tolist()
    states[2, 5] = torch.nan
    token_ids, largest = model.choose_greedily(states)
    assert np.isnan(largest).tolist() == [False, False, True, False, False, False]
    assert [*token_ids[:2], *token_ids[3:]] == expected[:2] + expected[3:]


def tokens_of(runner: ModelRunner, others: list[SamplingParams]) -> list[list[int]]:
    """Of greedy requests, beside others."""
    driver = StepDriver(runner, num_blocks=200)
    requests = [driver.add(prompt, GREEDY, 12) for prompt in prompts()]
    for sampling in others:
        driver.add([7, 8, 9], sampling, 12)
    driver.run()
    return [request.output_token_ids for request in requests]


OTHERS: dict[str, dict[str, Any]] = {
    "drawn": {"temperature": 0.9, "seed": 1},
    "logprobs": {"temperature": 0.0, "logprobs": 2},
    "penalized": {"temperature": 0.0, "frequency_penalty": 1.5},
    "biased": {"temperature": 0.0, "logit_bias": ((3, 50.0),)},
}


@pytest.mark.parametrize("other", list(OTHERS))
def test_whoever_is_beside_them_greedy_requests_get_the_same(tmp_path: Path, other: str) -> None:
    runner = load(write(tmp_path))
    assert tokens_of(runner, [SamplingParams(**OTHERS[other])]) == tokens_of(runner, [])


@pytest.mark.parametrize("other", list(OTHERS))
def test_a_request_that_wants_more_gets_it(tmp_path: Path, other: str) -> None:
    runner, plain = load(write(tmp_path)), load(write(tmp_path), "torch")
    found = []
    for each in (runner, plain):
        driver = StepDriver(each, num_blocks=50)
        found.append(driver.add([7, 8, 9], SamplingParams(**OTHERS[other]), 8))
        driver.run()
    if other == "logprobs":
        assert [len(entry) for entry in found[0].logprobs] == [len(e) for e in found[1].logprobs]
    assert found[0].output_token_ids == found[1].output_token_ids


@pytest.mark.parametrize(
    ("largest", "failure"), [(np.nan, NAN_LOGITS), (np.inf, NAN_LOGITS), (-np.inf, EMPTY_MASK)]
)
def test_a_request_without_valid_numbers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: float, failure: RowFailure
) -> None:
    runner = load(write(tmp_path))
    expected = tokens_of(runner, [])
    model = model_of(runner)
    choose = model.choose_greedily

    def spoil(hidden: torch.Tensor) -> Any:
        token_ids, values = choose(hidden)
        if len(values) == len(expected):
            values[0] = largest  # of the prompt of one token: it comes first
        return token_ids, values

    monkeypatch.setattr(model, "choose_greedily", spoil)
    driver = StepDriver(runner, num_blocks=200)
    requests = [driver.add(prompt, GREEDY, 12) for prompt in prompts()]
    driver.run()
    assert requests[0].failure == failure.reason
    assert [request.output_token_ids for request in requests[1:]] == expected[1:]
