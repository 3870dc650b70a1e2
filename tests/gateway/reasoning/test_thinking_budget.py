from __future__ import annotations

import pytest

from gateway.reasoning.think_tags import Begin
from gateway.reasoning.thinking_budget import ThinkingTags, num_open_tokens, with_thinking_budget
from pagewire.sampling_params import SamplingParams, ThinkingBudget

TAGS = ThinkingTags((1, 2), (3, 2))

CASES = [
    # prompt, where outputs begin, tokens of thinking that it leaves open
    ([], None, None),
    ([9, 9], None, None),
    ([9, 1, 2], None, 0),
    ([1, 2, 8, 8, 8], None, 3),
    ([1, 2, 8, 3, 2], None, None),
    ([1, 2, 8, 3, 2, 1, 2, 5], None, 1),
    ([3, 2, 1, 2], None, 0),
    ([1, 1, 2], None, 0),
    ([1, 2, 8, 3], None, 2),
    # What a user has written opens nothing.
    ([1, 2, 8, 8], Begin.EITHER, None),
    ([1, 2, 8, 8], Begin.ANSWER, None),
    ([1, 2, 8, 8], Begin.REASONING, 2),
    # Some models reason although no tag says so.
    ([9, 9], Begin.REASONING, 0),
    ([1, 2, 8, 3, 2], Begin.REASONING, 0),
]


@pytest.mark.parametrize(("prompt", "begin", "expected"), CASES)
def test_a_prompt_tells_what_thinking_it_leaves_open(
    prompt: list[int], begin: Begin | None, expected: int | None
) -> None:
    assert num_open_tokens(prompt, TAGS, begin) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 8, 7, 1, 9], None),
        ([1, 8, 7, 1, 8], 1),  # no whole end
        ([1, 8, 7, 1, 9, 1, 8], 1),
        ([7, 1, 9, 8, 1], 0),
    ],
)
def test_a_start_that_is_part_of_an_end_opens_nothing(
    prompt: list[int], expected: int | None
) -> None:
    assert num_open_tokens(prompt, ThinkingTags((1,), (7, 1, 9)), None) == expected


@pytest.mark.parametrize("most", [0, 7])
def test_the_budget_goes_to_the_engine_in_token_ids(most: int) -> None:
    params = SamplingParams(thinking_token_budget=most)
    params = with_thinking_budget(params, TAGS, Begin.REASONING, [1, 2, 8])
    assert params.thinking_budget == ThinkingBudget(most, (1, 2), (3, 2), 1)
