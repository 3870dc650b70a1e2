from __future__ import annotations

import pytest

from scheduler_svc.vocabulary import GreedyEncoder
from tests.scheduler_svc.vocabularies import SPECIAL, TOKENS, text_of

ENCODER = GreedyEncoder(TOKENS, SPECIAL)


@pytest.mark.parametrize("text", ["", "hello", "hehello", '{"name": true}', "é\U0001f600ß", "</s>"])
def test_the_tokens_of_a_text_are_that_text(text: str) -> None:
    assert text_of(ENCODER.encode(text.encode())) == text.encode()


def test_the_longest_token_is_taken_and_of_equals_the_first() -> None:
    assert [TOKENS[i] for i in ENCODER.encode(b"hehello")] == [b"he", b"hello"]
    assert ENCODER.encode(b"he") == [TOKENS.index(b"he")]


def test_special_tokens_are_not_used_for_text() -> None:
    assert not SPECIAL.intersection(ENCODER.encode(b"<s></s><|im_end|>"))


def test_no_more_tokens_than_asked_for() -> None:
    assert len(ENCODER.encode(b"abcdef", 3)) == 3
    assert ENCODER.encode(b"abcdef", 0) == []


def test_text_without_a_token_ends_the_answer() -> None:
    encoder = GreedyEncoder([b"a", b"", b"bc"], frozenset())
    assert encoder.encode(b"abcbx") == [0, 2]
    assert GreedyEncoder([], frozenset()).encode(b"a") == []
