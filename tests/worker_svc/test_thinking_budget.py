"""Which token a thinking budget forces, against whole outputs that are searched anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.sampling_params import ThinkingBudget
from tests.worker_svc.sampler.reference import forced_token
from worker_svc.thinking_budget import ThinkingState

START, END = 90, 91
MULTI = (7, 8, 9)


def budget_of(
    max_tokens: int, end: tuple[int, ...] = (END,), num_open: int | None = None
) -> ThinkingBudget:
    return ThinkingBudget(max_tokens, (START,), end, num_open)


def forced(budget: ThinkingBudget, *output: int) -> int | None:
    [token_id] = ThinkingState(budget, output).forced()
    return token_id


def test_nothing_is_forced_without_thinking() -> None:
    assert forced(budget_of(0)) is None
    assert forced(budget_of(2), 1, 2, 3, 4) is None


def test_the_end_is_forced_once_the_budget_is_used_up() -> None:
    assert forced(budget_of(2), START, 1) is None
    assert forced(budget_of(2), START, 1, 2) == END
    assert forced(budget_of(2), START, 1, 2, END) is None
    assert forced(budget_of(2), START, 1, 2, END, 3, 4, 5) is None


def test_a_budget_of_nothing_ends_thinking_at_once() -> None:
    assert forced(budget_of(0), START) == END
    assert forced(budget_of(0, num_open=0)) == END


def test_thinking_in_the_prompt_counts() -> None:
    assert forced(budget_of(3, num_open=1), 5) is None
    assert forced(budget_of(3, num_open=1), 5, 6) == END
    assert forced(budget_of(3, num_open=9)) == END


def test_a_start_behind_the_prompts_own_counts_anew() -> None:
    assert forced(budget_of(2, num_open=1), START) is None
    assert forced(budget_of(2, num_open=1), START, 4, 5) == END


def test_each_block_has_the_whole_budget() -> None:
    assert forced(budget_of(2), START, 1, 2, END, START, 3) is None
    assert forced(budget_of(2), START, 1, 2, END, START, 3, 4) == END


def test_an_end_of_several_tokens_is_forced_one_by_one() -> None:
    output = [START, 1, 2]
    for token_id in MULTI:
        assert forced(budget_of(2, MULTI), *output) == token_id
        output.append(token_id)
    assert forced(budget_of(2, MULTI), *output) is None


def test_an_end_that_has_begun_by_itself_is_gone_on_with() -> None:
    assert forced(budget_of(3, MULTI), START, 1, 7, 8) == 9
    assert forced(budget_of(3, MULTI), START, 7, 8, 1) == 7
    assert forced(budget_of(4, MULTI), START, 1, 7, 8) is None


tokens = st.sampled_from([1, 2, 7, 8, 9, START, END])
tags = st.lists(tokens, min_size=1, max_size=3).map(tuple)


@given(st.integers(0, 6), tags, tags, st.none() | st.integers(0, 4), st.lists(tokens, max_size=25))
def test_the_rule_is_that_of_the_whole_output(
    most: int, start: tuple[int, ...], end: tuple[int, ...], num_open: int | None, output: list[int]
) -> None:
    budget = ThinkingBudget(most, start, end, num_open)
    state = ThinkingState(budget)
    places = state.forced(output)
    for length in range(len(output) + 1):
        assert state.forced()[0] == places[length]
        assert ThinkingState(budget, output[:length]).forced()[0] == places[length]
        state.append(output[length : length + 1])
    if num_open is None and not set(start) & set(end):
        assert places == [
            forced_token(budget, output[:length]) for length in range(len(output) + 1)
        ]


@pytest.mark.parametrize("end", [(END,), MULTI])
@given(output=st.lists(tokens, max_size=25), most=st.integers(0, 5))
def test_the_prompts_open_thinking_is_as_if_it_were_output(
    end: tuple[int, ...], output: list[int], most: int
) -> None:
    for num_open in range(3):
        budget = budget_of(most, end, num_open)
        assert forced(budget, *output) == forced_token(budget, output)
