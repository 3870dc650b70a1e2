import math
from typing import Any

import pytest

from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import (
    SamplingParams,
    StructuredOutputs,
    ThinkingBudget,
    check_token_ids,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-30),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("max_tokens", 2**31),
        ("min_tokens", -1),
        ("min_tokens", 2**31),
        ("logprobs", 257),
        ("prompt_logprobs", -1),
        ("stop", ("",)),
        ("stop", ("\ud800",)),
        ("stop", ("a", "b", "c", "d", "e")),
        ("bad_words", ("",)),
        ("bad_words", ("x",) * 129),
        ("logit_bias", tuple((token_id, 1.0) for token_id in range(1025))),
        ("allowed_token_ids", tuple(range(16385))),
        ("logprob_token_ids", tuple(range(129))),
        ("logprob_token_ids", (5, 6, 5)),
        ("thinking_token_budget", -2),
        ("thinking_token_budget", 2**31),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [((1,) * 65,), ((1,),) * 257, ((),)],
    ids=["long", "many", "empty"],
)
def test_bad_words_out_of_bounds_as_token_ids_are_refused(
    words: tuple[tuple[int, ...], ...],
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(bad_words_token_ids=words)
    assert caught.value.field == "bad_words"


def test_lists_of_the_largest_size_are_taken() -> None:
    SamplingParams(
        logit_bias=tuple((token_id, 1.0) for token_id in range(1024)),
        allowed_token_ids=tuple(range(16384)),
        bad_words=("x",) * 128,
        bad_words_token_ids=((1,) * 64,) * 256,
    )


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_named_logprobs_ask_for_as_many_and_agree_with_logprobs() -> None:
    assert SamplingParams().num_logprobs is None
    assert SamplingParams(logprobs=0).num_logprobs == 0
    assert SamplingParams(logprob_token_ids=tuple(range(128))).num_logprobs == 128
    assert SamplingParams(logprob_token_ids=(4, 2), logprobs=2).num_logprobs == 2
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(logprob_token_ids=(4, 2), logprobs=3)
    assert caught.value.field == "logprobs"


@pytest.mark.parametrize("field", ["allowed_token_ids", "logprob_token_ids"])
def test_lists_of_token_ids_are_held_to_the_vocabulary(field: str) -> None:
    params = SamplingParams(**{field: (99, 100)})  # type: ignore[arg-type]
    params.check_vocabulary(101)
    with pytest.raises(InvalidRequestError) as caught:
        params.check_vocabulary(100)
    assert caught.value.field == field


@pytest.mark.parametrize(("given", "kept"), [(None, None), (-1, None), (0, 0), (7, 7)])
def test_a_thinking_budget_of_minus_one_is_none(given: int | None, kept: int | None) -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, thinking_token_budget=given)
        assert params.normalized().thinking_token_budget == kept


@pytest.mark.parametrize(
    "values",
    [(-1, (1,), (2,)), (2**31, (1,), (2,)), (1, (), (2,)), (1, (1,), ()), (1, (1,) * 65, (2,))],
)
def test_a_thinking_budget_that_means_nothing_is_refused(values: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ThinkingBudget(*values)
    assert caught.value.field == "thinking_budget"


def test_the_tags_of_a_thinking_budget_are_in_the_vocabulary() -> None:
    params = SamplingParams(thinking_budget=ThinkingBudget(1, (5,), (6, 100)))
    params.check_vocabulary(101)
    with pytest.raises(InvalidRequestError, match="thinking_budget"):
        params.check_vocabulary(100)


def test_greedy_turns_the_other_settings_off() -> None:
    params = SamplingParams(temperature=1e-6, top_p=0.5, top_k=7, min_p=0.1).normalized()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_a_tiny_temperature_is_raised_and_top_k_minus_one_means_off() -> None:
    params = SamplingParams(temperature=0.001, top_k=-1).normalized()
    assert (params.temperature, params.top_k) == (0.01, 0)


def test_what_is_normal_already_stays_as_it_is() -> None:
    for params in (SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=7)):
        assert params.normalized() is params


def test_token_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(stop_token_ids=(3, 100)).check_vocabulary(100)
    assert caught.value.field == "stop_token_ids"
    assert "99" in str(caught.value)


def test_token_ids_inside_the_vocabulary_pass() -> None:
    check_token_ids("prompt", [0, 99], 100)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"json_object": True, "regex": "a"},
        {"json_schema": "{}", "choice": ("a",)},
        {"regex": ""},
        {"json_schema": {"type": "object"}},
        {"choice": ("a", "")},
        {"grammar": "\ud800"},
        {"regex": "a", "reasoning_start": "<think>"},
        {"regex": "a", "reasoning_end": "\n"},
        {"regex": "a", "reasoning_end": "x" * 65},
    ],
)
def test_structured_outputs_have_exactly_one_form(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputs(**values)
    assert caught.value.field == "structured_outputs"


def test_the_size_of_structured_outputs_is_that_of_all_texts() -> None:
    assert StructuredOutputs(choice=("ä", "bc")).num_bytes == 4
    assert StructuredOutputs(json_object=True).num_bytes == 0
