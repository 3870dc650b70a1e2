"""Truncation of prompts, bad words, and what is echoed."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import AsyncMock, Mock

import pytest

from gateway.generation import GenerationRequest, TruncationSide
from gateway.prompts import prompt_texts, tokenize_bad_words, tokenize_prompts, truncate
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams
from tests.fakes.fake_tokenizer import BOS, decode, encode

LEFT, RIGHT = TruncationSide.LEFT, TruncationSide.RIGHT


def make_tokenizer() -> Mock:
    """Bytes as tokens, BOS before every text."""
    tokenizer = Mock()
    tokenizer.info.bos_token_id = BOS
    tokenizer.encode = AsyncMock(side_effect=lambda texts, _: [[BOS, *encode(t)] for t in texts])
    tokenizer.decode = AsyncMock(side_effect=lambda rows, _: [decode(row) for row in rows])
    tokenizer.encode_bad_words = AsyncMock(
        side_effect=lambda words: [encode(space + word) for word in words for space in ("", " ")]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("limit", "side", "bos", "expected"),
    [
        (3, LEFT, None, [3, 4, 5]),
        (3, RIGHT, None, [1, 2, 3]),
        (3, LEFT, 1, [1, 4, 5]),
        (1, LEFT, 1, [5]),
        (3, LEFT, 9, [3, 4, 5]),
        (5, LEFT, 1, [1, 2, 3, 4, 5]),
        (9, RIGHT, None, [1, 2, 3, 4, 5]),
    ],
)
def test_truncation_leaves_the_other_side_and_what_begins_a_text(
    limit: int, side: TruncationSide, bos: int | None, expected: Sequence[int]
) -> None:
    assert list(truncate([1, 2, 3, 4, 5], limit, side, bos)) == expected


async def test_only_texts_keep_the_token_that_begins_them() -> None:
    request = GenerationRequest("", ("abcd", (BOS, 1, 2, 3)))
    rows = await tokenize_prompts(make_tokenizer(), request, 3)
    assert [list(row) for row in rows] == [[BOS, *encode("cd")], [1, 2, 3]]


async def test_bad_words_are_forbidden_with_and_without_a_space_before_them() -> None:
    params = SamplingParams(bad_words=("no", "no", " x"))
    found = await tokenize_bad_words(make_tokenizer(), params, 300)
    texts = [decode(word) for word in found.bad_words_token_ids]
    assert texts == ["no", " no", " x", "  x"]


async def test_a_bad_word_that_is_too_long_is_refused() -> None:
    params = SamplingParams(bad_words=("n" * 65,))
    with pytest.raises(InvalidRequestError) as caught:
        await tokenize_bad_words(make_tokenizer(), params, 300)
    assert caught.value.field == "bad_words"


async def test_without_bad_words_nobody_is_asked() -> None:
    params = SamplingParams()
    assert await tokenize_bad_words(Mock(), params, 300) is params


async def test_texts_are_echoed_as_they_were_written_and_token_ids_decoded() -> None:
    request = GenerationRequest("", ("ab", tuple(encode("cd"))))
    tokenizer = make_tokenizer()
    rows = await tokenize_prompts(tokenizer, request, None)
    assert await prompt_texts(tokenizer, request, rows) == ["ab", "cd"]
    cut = GenerationRequest("", ("ab",), truncate_prompt_tokens=2)
    rows = await tokenize_prompts(tokenizer, cut, 2)
    assert await prompt_texts(tokenizer, cut, rows) == ["b"]
