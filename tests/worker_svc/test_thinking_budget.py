"""Which token a thinking budget forces, against whole outputs that are searched anew."""

from __future__ import annotations

from collections.abc import Sequence

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


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ((START,), (7, START, 9)),
        ((START,), (7, START)),
        ((START,), (START, 9)),
        ((START,), (START,)),
        ((7, 8), (6, 7, 8, 9)),
        ((7, 8), (7, 8, 7, 9)),
        ((7, 8, 9), (8, 9)),  # the start has the end in it
        ((3, 7), (7, 8)),  # and a part of it
    ],
)
def test_an_end_comes_whole_though_it_has_tokens_of_the_start(
    start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    # Behind 3 the first token of the last end makes a start with it.
    output = [*start, 1, 3]
    budget = ThinkingBudget(2, start, end)
    for token_id in end:
        assert forced(budget, *output) == token_id
        output.append(token_id)
    assert forced(budget, *output, *[1] * 9) is None
    again = [*output, *start, 1]
    assert forced(budget, *again) is None
    assert forced(budget, *again, 1) == end[0]


def test_a_start_in_an_end_that_does_not_come_counts_from_its_place() -> None:
    budget = ThinkingBudget(4, (START,), (7, START, 9))
    output = [START, 1, 1, 7, START]
    assert forced(budget, *output) == 9  # of four tokens, two begin an end
    assert forced(budget, *output, 1) is None  # one behind the second start
    assert forced(budget, *output, 1, 1, 1) is None
    assert forced(budget, *output, 1, 1, 1, 1) == 7


def test_an_end_without_thinking_begins_what_the_start_in_it_begins() -> None:
    budget = ThinkingBudget(2, (START,), (7, START, 9))
    assert forced(budget, 1, 7, START, 9) is None
    assert forced(budget, 1, 7, START, 9, 1) == 7


tokens = st.sampled_from([1, 2, 7, 8, 9, START, END])
tags = st.lists(tokens, min_size=1, max_size=3).map(tuple)
sharing_tags = st.lists(st.sampled_from([7, 8]), min_size=1, max_size=4).map(tuple)


def searched(budget: ThinkingBudget, output: Sequence[int]) -> int | None:
    """The rule for any tags, by the places of whole tags in the whole output."""
    start, end = budget.start_token_ids, budget.end_token_ids

    def is_at(tag: tuple[int, ...], stop: int, behind: int) -> bool:
        return stop - len(tag) >= behind and tuple(output[stop - len(tag) : stop]) == tag

    def written(stop: int, behind: int) -> int:
        return max((n for n in range(1, len(end)) if is_at(end[:n], stop, behind)), default=0)

    begin, last_end = None, 0
    for stop in range(1, len(output) + 1):
        if begin is None:
            begin = stop if is_at(start, stop, last_end) else None
        elif is_at(end, stop, begin):
            begin, last_end = None, stop
        else:
            whole = range(begin + 1, stop - written(stop, begin) + 1)
            begin = max((place for place in whole if is_at(start, place, last_end)), default=begin)
    if begin is None or len(output) - begin < budget.max_tokens:
        return None
    return end[written(len(output), begin)]


@given(
    st.integers(0, 4),
    sharing_tags,
    sharing_tags,
    st.lists(st.sampled_from([1, 7, 8]), max_size=25),
)
def test_tags_that_share_tokens_do_not_overlap(
    most: int, start: tuple[int, ...], end: tuple[int, ...], output: list[int]
) -> None:
    budget = ThinkingBudget(most, start, end)
    places = ThinkingState(budget).forced(output)
    assert places == [searched(budget, output[:length]) for length in range(len(output) + 1)]


@given(
    st.integers(0, 4),
    sharing_tags,
    sharing_tags,
    st.none() | st.integers(0, 4),
    st.lists(st.sampled_from([1, 7, 8]), max_size=25),
)
def test_an_end_once_forced_comes_whole_and_ends_the_thinking(
    most: int, start: tuple[int, ...], end: tuple[int, ...], num_open: int | None, free: list[int]
) -> None:
    state = ThinkingState(ThinkingBudget(most, start, end, num_open))
    for token_id in free:
        came: list[int] = []
        while (must_come := state.forced()[0]) is not None:
            came.append(must_come)
            state.append([must_come])
        assert len(came) <= len(end)
        assert tuple(came) == end[len(end) - len(came) :]
        if came:
            assert state.forced([1] * (most + len(end))) == [None] * (most + len(end) + 1)
        state.append([token_id])


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
    if num_open is None:
        assert places == [searched(budget, output[:n]) for n in range(len(output) + 1)]
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
