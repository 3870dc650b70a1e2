from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagewire.sampling_params import ThinkingBudget
from tests.worker_svc.sampler.factories import make_batch, make_row
from worker_svc.sampler.processors import apply_processors

EOS = torch.tensor([2])


def processed(values: list[float], **row: Any) -> list[float]:
    logits = torch.tensor([values], dtype=torch.float32)
    apply_processors(logits, make_batch([make_row(**row)]), EOS)
    return logits[0].tolist()


def test_only_allowed_tokens_remain() -> None:
    assert processed([1, 2, 3], allowed_token_ids=(0, 2)) == [1, -math.inf, 3]


@pytest.mark.parametrize(("num_outputs", "masked"), [(0, True), (1, True), (2, False)])
def test_eos_and_stop_ids_are_masked_before_min_tokens(num_outputs: int, masked: bool) -> None:
    values = processed([1, 1, 1, 1], min_tokens=2, stop_token_ids=(3,), output=[0] * num_outputs)
    assert [math.isinf(value) for value in values] == [False, False, masked, masked]


def test_logit_bias_is_added() -> None:
    assert processed([1, 2, 3], logit_bias=((1, -5.0), (2, 0.5))) == [1, -3, 3.5]


def test_repetition_counts_prompt_and_output() -> None:
    values = processed([2, -2, 2, 2], repetition_penalty=2.0, prompt=[0, 0, 1], output=[2])
    assert values == [1, -4, 1, 2]


def test_frequency_and_presence_count_the_output_only() -> None:
    values = processed(
        [0, 0, 0], frequency_penalty=0.5, presence_penalty=0.25, prompt=[0], output=[1, 2, 2]
    )
    assert values == [0, -0.75, -1.25]


@pytest.mark.parametrize(
    ("output", "masked"), [([], False), ([4], False), ([4, 0], True), ([0, 4], False)]
)
def test_a_bad_word_is_masked_only_behind_its_beginning(output: list[int], masked: bool) -> None:
    values = processed([0.0] * 5, bad_words_token_ids=((4, 0, 1),), output=output)
    assert math.isinf(values[1]) == masked
    assert not any(math.isinf(value) for index, value in enumerate(values) if index != 1)


def test_a_bad_word_of_one_token_is_always_masked() -> None:
    assert processed([0, 0], bad_words_token_ids=((1,),)) == [0, -math.inf]


def test_bad_words_that_share_a_beginning_are_all_masked() -> None:
    words = ((4, 0), (4, 1), (2,), (9, 9, 9, 3))
    values = processed([0.0] * 5, bad_words_token_ids=words, output=[4])
    assert [math.isinf(value) for value in values] == [True, True, True, False, False]


def test_biases_of_one_token_add_up() -> None:
    assert processed([1, 2], logit_bias=((1, 1.0), (1, 0.5))) == [1, 3.5]


def test_rows_do_not_touch_each_other() -> None:
    logits = torch.zeros(2, 3)
    apply_processors(logits, make_batch([make_row(), make_row(min_tokens=1)]), EOS)
    assert logits.tolist() == [[0, 0, 0], [0, 0, -math.inf]]


def test_what_a_budget_forces_comes_whatever_else_is_asked_for() -> None:
    budget = ThinkingBudget(0, (4,), (2,), 0)
    wishes = {"min_tokens": 1, "allowed_token_ids": (1, 3), "logit_bias": ((1, 50.0),)}
    none = -math.inf
    assert processed([1, 2, 3, 4], thinking_budget=budget, **wishes) == [none, none, 0, none]


def test_processed_places_are_those_of_either_kind_in_rising_order() -> None:
    forced = {"thinking_budget": ThinkingBudget(0, (4,), (2,), 0)}
    kinds: list[dict[str, Any]] = [forced, {"min_tokens": 1}, forced | {"min_tokens": 1}, {}]
    batch = make_batch([make_row(**kinds[row % 4]) for row in range(40)])
    assert batch.processed_places.tolist() == [row for row in range(40) if row % 4 < 3]


def test_a_mask_goes_before_what_a_budget_forces() -> None:
    budget = ThinkingBudget(0, (4,), (2,), 0)
    values = [1, 2, -math.inf, 4]
    assert processed(values, thinking_budget=budget) == values
