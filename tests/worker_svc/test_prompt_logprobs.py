"""Logprobs of prompts against transformers, whole and in chunks, once a request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.runner_factories import make_model_runner, make_prompts, make_sim_runner
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from worker_svc.model_runner import ModelRunner
from worker_svc.step import LogprobColumns, Runner

NUM_TOP = 3
LENGTHS = (1, 2, 16, 17, 18, 70)
PROMPTS = make_prompts(LENGTHS)
ASKING = SamplingParams(temperature=0.0, prompt_logprobs=NUM_TOP, logprobs=NUM_TOP)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, Any]:
    """A random model here and in transformers."""
    from transformers import AutoModelForCausalLM

    directory = tmp_path_factory.mktemp("tiny")
    runner = make_model_runner(directory)
    return runner, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def run(runner: Runner, params: SamplingParams = ASKING, **options: Any) -> list[DriverRequest]:
    preempt_after = options.pop("preempt_after", None)
    driver = StepDriver(runner, num_blocks=256, block_size=8, **options)
    requests = [
        driver.add(prompt, params, max_tokens=4, preempt_after=preempt_after) for prompt in PROMPTS
    ]
    driver.run()
    return requests


def rows_of(columns: LogprobColumns) -> list[tuple[list[int], list[float]]]:
    """Token ids and logprobs of each token, itself first."""
    ends = np.cumsum(columns.counts)
    ids = np.split(np.array(columns.token_ids), ends[:-1])
    values = np.split(np.array(columns.logprobs), ends[:-1])
    return [(i.tolist(), v.tolist()) for i, v in zip(ids, values, strict=True)]


@torch.inference_mode()
def expected_logprobs(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """[len(token_ids), vocab_size]: at each position, of the token after it."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return torch.log_softmax(logits, dim=-1)


@pytest.mark.parametrize("chunk", [10_000, 16, 5, 1])
def test_they_are_those_of_transformers(model: tuple[ModelRunner, Any], chunk: int) -> None:
    runner, reference = model
    for request, prompt in zip(run(runner, chunk=chunk), PROMPTS, strict=True):
        [columns] = request.prompt_logprobs
        assert list(columns.counts) == [1 + NUM_TOP] * (len(prompt) - 1)
        if len(prompt) == 1:
            continue
        expected = expected_logprobs(reference, prompt)
        for position, (ids, values) in enumerate(rows_of(columns)):
            assert ids[0] == prompt[position + 1]
            assert values == pytest.approx(expected[position][ids].tolist(), abs=2e-4)
            best = expected[position].topk(NUM_TOP).values.tolist()
            assert values[1:] == pytest.approx(best, abs=2e-4)
            rank = int((expected[position] >= expected[position][ids[0]]).sum())
            assert columns.sampled_ranks[position] == rank


def test_logprobs_of_the_output_are_those_of_transformers(model: tuple[ModelRunner, Any]) -> None:
    runner, reference = model
    for request, prompt in zip(run(runner), PROMPTS, strict=True):
        expected = expected_logprobs(reference, [*prompt, *request.output_token_ids])
        for index, found in enumerate(request.logprobs):
            row = expected[len(prompt) - 1 + index]
            assert list(found.values()) == pytest.approx(row[list(found)].tolist(), abs=2e-4)


def test_chunks_give_the_same_bits(model: tuple[ModelRunner, Any]) -> None:
    whole = [request.prompt_logprobs for request in run(model[0])]
    assert [request.prompt_logprobs for request in run(model[0], chunk=7)] == whole


def test_a_request_that_is_resumed_does_not_get_them_again(model: tuple[ModelRunner, Any]) -> None:
    whole = run(model[0])
    resumed = run(model[0], preempt_after=2)
    for request, reference in zip(resumed, whole, strict=True):
        assert request.output_token_ids == reference.output_token_ids
        assert request.prompt_logprobs == reference.prompt_logprobs
        assert len(request.prompt_logprobs) == 1


def test_sampling_parameters_do_not_shape_them(model: tuple[ModelRunner, Any]) -> None:
    shaped = SamplingParams(
        temperature=0.3, seed=1, top_k=2, repetition_penalty=1.5, prompt_logprobs=NUM_TOP
    )
    plain = [request.prompt_logprobs for request in run(model[0])]
    assert [request.prompt_logprobs for request in run(model[0], shaped)] == plain


def test_a_prompt_whose_logits_are_no_numbers_fails_alone(tmp_path: Path) -> None:
    runner = make_model_runner(tmp_path)
    assert runner._loaded is not None
    poison = 7
    runner._loaded.model.embed_tokens.data[poison] = torch.nan  # type: ignore[operator, union-attr, index]
    driver = StepDriver(runner, num_blocks=256, block_size=8, chunk=4)
    bad = driver.add([9, poison, *range(20, 40)], ASKING, 4)
    good = driver.add([9, *range(20, 40)], ASKING, 4)
    driver.run()
    assert (bad.failure, bad.output_token_ids, bad.prompt_logprobs) == ("NAN_LOGITS", [], [])
    assert good.failure is None
    assert [len(columns.counts) for columns in good.prompt_logprobs] == [20]


def test_simulated_ones_are_well_formed_and_come_once(tmp_path: Path) -> None:
    for request, prompt in zip(
        run(make_sim_runner(tmp_path), chunk=7, preempt_after=2), PROMPTS, strict=True
    ):
        [columns] = request.prompt_logprobs
        assert list(columns.counts) == [1 + NUM_TOP] * (len(prompt) - 1)
        if len(prompt) > 1:
            assert [ids[0] for ids, _ in rows_of(columns)] == prompt[1:]
