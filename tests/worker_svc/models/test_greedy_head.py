"""Tokens that are chosen without logits are those of the largest logits, in any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.sampling_params import SamplingParams, ThinkingBudget
from tests.worker_svc.models.test_packed_llama import (
    K_SIZES,
    load,
    plain_processor,
    prompts,
    threads_are_woken,
    write,
    write_folder,
)
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from worker_svc.loaded_model import LoadedModel
from worker_svc.model_runner import ModelRunner
from worker_svc.models import packed_llama
from worker_svc.models.packed_llama import HEAD, PackedLlama
from worker_svc.step import EMPTY_MASK, NAN_LOGITS, RowFailure

__all__ = ["plain_processor", "threads_are_woken"]

GREEDY = SamplingParams(temperature=0.0)
MAX_TOKENS = 12
K_TYPES = ["Q4_K", "Q5_K", "Q6_K"]
TYPES = ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16", *K_TYPES]


def loaded_of(runner: ModelRunner) -> LoadedModel:
    return runner._require_loaded()


def model_of(runner: ModelRunner) -> PackedLlama:
    model = loaded_of(runner).model
    assert isinstance(model, PackedLlama)
    return model


@pytest.mark.parametrize("vocabulary_type", TYPES)
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("vocab_size", [203, 2500])
def test_largest_logits(
    tmp_path: Path, vocabulary_type: str, num_threads: int, vocab_size: int
) -> None:
    sizes = K_SIZES if vocabulary_type in K_TYPES else {}
    path = write(tmp_path, "llama", "Q4_1", vocabulary_type, vocab_size=vocab_size, **sizes)
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
    half = 1250
    folder = write_folder(tmp_path / "model", torch.bfloat16, vocab_size=2 * half)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    # Each row is there twice, far apart: mostly one thread finds the one and another the other.
    tensors[HEAD][half:] = tensors[HEAD][:half]
    save_file(tensors, path)
    model = model_of(load(folder, num_threads=num_threads))
    states = torch.randn(100, model.config.hidden_size)
    expected = model.compute_logits(states)[:, :half].argmax(dim=1).tolist()
    for _ in range(50):  # threads share the vocabulary in another way each time
        assert model.choose_greedily(states)[0].tolist() == expected


def test_a_row_of_nan_is_told_and_harms_no_other(tmp_path: Path) -> None:
    model = model_of(load(write(tmp_path)))
    states = torch.randn(6, model.config.hidden_size)
    expected = model.choose_greedily(states)[0].tolist()
    states[2, 5] = torch.nan
    token_ids, largest = model.choose_greedily(states)
    assert np.isnan(largest).tolist() == [False, False, True, False, False, False]
    assert [*token_ids[:2], *token_ids[3:]] == expected[:2] + expected[3:]


def test_one_thread_alone_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    together = tokens_of(load(path, num_threads=3), [])
    monkeypatch.setattr(packed_llama, "ALONE_PRODUCTS", 2**40)
    assert tokens_of(load(path, num_threads=3), []) == together


def tokens_of(runner: ModelRunner, others: list[SamplingParams]) -> list[list[int]]:
    """Of greedy requests, beside others."""
    driver = StepDriver(runner, num_blocks=200)
    requests = [driver.add(prompt, GREEDY, MAX_TOKENS) for prompt in prompts()]
    for sampling in others:
        driver.add([7, 8, 9], sampling, MAX_TOKENS)
    driver.run()
    return [request.output_token_ids for request in requests]


def alone(runner: ModelRunner, sampling: SamplingParams) -> DriverRequest:
    driver = StepDriver(runner, num_blocks=50)
    request = driver.add([7, 8, 9], sampling, MAX_TOKENS)
    driver.run()
    return request


DRAWN = {"temperature": 0.9, "seed": 1}
OTHERS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 2},
    "penalized": {"presence_penalty": 2.0},
    "biased": {"logit_bias": ((3, 50.0),)},
    "some ids": {"allowed_token_ids": (3, 4, 5)},
    "thinking": {"thinking_budget": ThinkingBudget(2, (90,), (91, 92), num_open_tokens=0)},
}


class Watched:
    """Counts how often a model chose greedily."""

    def __init__(self, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._choose = loaded_of(runner).choose_greedily
        monkeypatch.setattr(loaded_of(runner), "choose_greedily", self)

    def __call__(self, hidden: torch.Tensor) -> Any:
        assert self._choose is not None
        self.count += 1
        return self._choose(hidden)


@pytest.mark.parametrize("other", ["drawn", *OTHERS])
def test_whoever_is_beside_them_greedy_requests_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    runner = load(write(tmp_path))
    watched = Watched(runner, monkeypatch)
    among_themselves = tokens_of(runner, [])
    assert watched.count == MAX_TOKENS
    fields = DRAWN if other == "drawn" else {"temperature": 0.0, **OTHERS[other]}
    assert tokens_of(runner, [SamplingParams(**fields)]) == among_themselves
    assert watched.count == MAX_TOKENS, "a step that has one who wants more"


@pytest.mark.parametrize("other", list(OTHERS))
def test_a_greedy_request_that_wants_more_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    runner, in_pytorch = load(write(tmp_path)), load(write(tmp_path), "torch")
    watched = Watched(runner, monkeypatch)
    sampling = SamplingParams(temperature=0.0, **OTHERS[other])
    found, expected = alone(runner, sampling), alone(in_pytorch, sampling)
    assert watched.count == 0
    assert found.output_token_ids == expected.output_token_ids
    assert [entry.keys() for entry in found.logprobs] == [e.keys() for e in expected.logprobs]
    if other != "logprobs":
        assert found.output_token_ids != alone(runner, GREEDY).output_token_ids


def test_logprobs_of_the_prompt_beside_greedy_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(write(tmp_path))
    plain = alone(runner, GREEDY)
    watched = Watched(runner, monkeypatch)
    found = alone(runner, SamplingParams(temperature=0.0, prompt_logprobs=1))
    assert watched.count == MAX_TOKENS
    assert found.output_token_ids == plain.output_token_ids
    assert [len(columns.counts) for columns in found.prompt_logprobs] == [2]


def spoil(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, place: int, value: float) -> None:
    """Put a value in place of the largest logit at one place of the first step that has it."""
    choose = loaded_of(runner).choose_greedily
    assert choose is not None
    is_done = False

    def spoiled(hidden: torch.Tensor) -> Any:
        nonlocal is_done
        token_ids, largest = choose(hidden)
        if not is_done and len(largest) > place:
            largest[place], is_done = value, True
        return token_ids, largest

    monkeypatch.setattr(loaded_of(runner), "choose_greedily", spoiled)


@pytest.mark.parametrize(
    ("value", "failure"), [(np.nan, NAN_LOGITS), (np.inf, NAN_LOGITS), (-np.inf, EMPTY_MASK)]
)
def test_a_request_without_valid_numbers_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, failure: RowFailure
) -> None:
    runner = load(write(tmp_path))
    expected = tokens_of(runner, [])
    spoil(runner, monkeypatch, 0, value)  # the prompt of one token comes first
    driver = StepDriver(runner, num_blocks=200)
    requests = [driver.add(prompt, GREEDY, MAX_TOKENS) for prompt in prompts()]
    driver.run()
    assert requests[0].failure == failure.reason
    assert [request.output_token_ids for request in requests[1:]] == expected[1:]


def test_a_nan_behind_a_draft_ends_the_request_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(write(tmp_path))
    tokens = alone(runner, GREEDY).output_token_ids
    spoil(runner, monkeypatch, 1, np.nan)
    driver = StepDriver(runner, num_blocks=50)
    request = driver.add(
        [7, 8, 9], GREEDY, MAX_TOKENS, propose=lambda done: tokens[len(done) : len(done) + 3]
    )
    driver.run()
    # The first step has a draft at its second place: the token before it counts.
    assert request.failure == NAN_LOGITS.reason
    assert request.output_token_ids == tokens[:1]
