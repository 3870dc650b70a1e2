from __future__ import annotations

import pytest

from gateway.reasoning.think_tags import Begin
from gateway.reasoning.token_counter import ReasoningTokenCounter, TagTokens

OPEN, CLOSE = 1, 2
CASES = [
    (Begin.EITHER, [OPEN, 5, 6, CLOSE, 7, OPEN, 8], 2),
    (Begin.EITHER, [5, 6], 0),
    (Begin.EITHER, [OPEN, 5], 1),
    (Begin.REASONING, [5, 6, CLOSE, 7], 2),
    (Begin.REASONING, [OPEN, 5, CLOSE, 7], 1),
    (Begin.REASONING, [CLOSE, 7], 0),
    (Begin.ANSWER, [5, OPEN, 6], 0),
]


@pytest.mark.parametrize(("begin", "token_ids", "expected"), CASES)
def test_tokens_between_the_tags_are_counted(
    begin: Begin, token_ids: list[int], expected: int
) -> None:
    tags = TagTokens(OPEN, CLOSE)
    whole, pieces = ReasoningTokenCounter(tags, begin), ReasoningTokenCounter(tags, begin)
    whole.push(0, token_ids)
    for token_id in token_ids:
        pieces.push(0, [token_id])
    assert whole.num_tokens == pieces.num_tokens == expected


def test_outputs_are_counted_together_and_apart() -> None:
    counter = ReasoningTokenCounter(TagTokens(OPEN, CLOSE), Begin.EITHER)
    counter.push(0, [OPEN, 5])
    counter.push(1, [5, 6])
    counter.push(0, [6, CLOSE, 7])
    counter.push(1, [CLOSE, 7])
    assert counter.num_tokens == 2
