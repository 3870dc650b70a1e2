from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.tokenizer_svc.corpus import CORPUS, NUMBERS
from tokenizer_svc.incremental_decoder import (
    MAX_HELD_TOKENS,
    DecoderTables,
    IncrementalDecoder,
    WindowDecoder,
)
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.vocabulary import read_vocabulary


@pytest.fixture(scope="session")
def metaspace() -> DecoderTables:
    """A decoder that only the library knows: it drops the space in front of the first token."""
    tokens = ["<unk>", "\u2581a", "b", "\u2581", "\u2581c", "\u00e9", "d\u2581"]
    tokenizer = Tokenizer(models.WordLevel(dict(zip(tokens, range(9), strict=False)), "<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>"])
    vocabulary = read_vocabulary(tokenizer, {"type": "Metaspace"})
    return DecoderTables(tokenizer, vocabulary)


def run(decoder: IncrementalDecoder, ids: Sequence[int], cuts: Sequence[int]) -> str:
    """Push `ids` cut into pieces of the sizes `cuts` (again and again), then flush."""
    texts, start, turn = [], 0, 0
    while start < len(ids):
        size = cuts[turn % len(cuts)]
        texts.append(decoder.push(ids[start : start + size]))
        start, turn = start + size, turn + 1
    return "".join(texts) + decoder.flush()


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), cuts=CUTS, skip=st.booleans())
def test_byte_level_text_is_that_of_the_whole(
    byte_level: ModelTokenizer, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    # Any bytes at all, and ids that are in no vocabulary.
    ids = data.draw(st.lists(st.integers(0, byte_level.vocabulary.size + 3), max_size=40))
    [expected] = byte_level.decode_batch([ids], skip)
    assert run(byte_level.decoder_tables.decoder(skip), ids, cuts) == expected


@settings(deadline=None, max_examples=300)
@given(text=st.text(max_size=30), cuts=CUTS, skip=st.booleans())
def test_byte_fallback_text_is_that_of_the_whole(
    sentencepiece: ModelTokenizer, text: str, cuts: list[int], skip: bool
) -> None:
    ids = sentencepiece.encode(text, True)
    [expected] = sentencepiece.decode_batch([ids], skip)
    assert run(sentencepiece.decoder_tables.decoder(skip), ids, cuts) == expected


@settings(deadline=None, max_examples=300)
@given(data=st.data(), cuts=CUTS)
def test_byte_fallback_text_does_not_depend_on_the_cuts(
    sentencepiece: ModelTokenizer, data: st.DataObject, cuts: list[int]
) -> None:
    ids = data.draw(st.lists(st.integers(0, sentencepiece.vocabulary.size + 3), max_size=40))
    tables = sentencepiece.decoder_tables
    assert run(tables.decoder(True), ids, cuts) == run(tables.decoder(True), ids, [100])


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 9), max_size=30), cuts=CUTS, skip=st.booleans())
def test_any_other_decoders_text_is_that_of_the_whole(
    metaspace: DecoderTables, ids: list[int], cuts: list[int], skip: bool
) -> None:
    expected = metaspace._tokenizer.decode(ids, skip_special_tokens=skip)
    assert run(metaspace.decoder(skip), ids, cuts) == expected


@pytest.mark.parametrize("text", [*CORPUS, *NUMBERS])
def test_token_by_token_gives_the_text_back(smollm2: ModelTokenizer, text: str) -> None:
    ids = smollm2.encode(text, False)
    assert run(smollm2.decoder_tables.decoder(False), ids, [1]) == text


def byte_ids(model: ModelTokenizer, raw: bytes) -> list[int]:
    names = {value: key for key, value in model.vocabulary.byte_tokens.items()}
    if names:
        return [names[byte] for byte in raw]
    single = {piece: i for i, piece in enumerate(model.vocabulary.token_bytes) if len(piece) == 1}
    return [single[bytes([byte])] for byte in raw]


@pytest.fixture(params=["byte_level", "sentencepiece"])
def model(request: pytest.FixtureRequest) -> ModelTokenizer:
    found: ModelTokenizer = request.getfixturevalue(request.param)
    return found


def test_an_incomplete_character_is_held_back(model: ModelTokenizer) -> None:
    ids = byte_ids(model, "\U0001f600".encode())
    decoder = model.decoder_tables.decoder(True)
    assert [decoder.push([token_id]) for token_id in ids] == ["", "", "", "\U0001f600"]


def test_an_incomplete_end_comes_out_at_the_end(model: ModelTokenizer) -> None:
    decoder = model.decoder_tables.decoder(True)
    assert decoder.push(byte_ids(model, b"a\xc3")) == "a"
    assert decoder.flush() == "\ufffd"


def test_an_invalid_prefix_resets(model: ModelTokenizer) -> None:
    decoder = model.decoder_tables.decoder(True)
    texts = [decoder.push([i]) for i in byte_ids(model, b"\xe2\xe2\x82\xac\xff\xffz")]
    assert texts == ["", "\ufffd", "", "\u20ac", "\ufffd", "\ufffd", "z"]


def test_valid_characters_of_an_invalid_run_stay(sentencepiece: ModelTokenizer) -> None:
    ids = byte_ids(sentencepiece, "\u00e9\u00e8".encode() + b"\xff")
    assert run(sentencepiece.decoder_tables.decoder(True), ids, [1]) == "\u00e9\u00e8\ufffd"


def test_unknown_ids_are_no_text(model: ModelTokenizer) -> None:
    decoder = model.decoder_tables.decoder(True)
    assert decoder.push([2**32 - 1, 10**6]) == ""


def test_what_goes_before_gives_no_text(model: ModelTokenizer) -> None:
    decoder = model.decoder_tables.decoder(True)
    decoder.prime(model.encode("hello", False))
    assert decoder.push(model.encode("hello", False)[-1:]) != ""
    fresh = model.decoder_tables.decoder(True)
    fresh.prime(model.encode("hello", False))
    assert fresh.flush() == ""


def test_a_character_that_the_prompt_began_is_completed(model: ModelTokenizer) -> None:
    ids = byte_ids(model, "\u20ac".encode())
    decoder = model.decoder_tables.decoder(True)
    decoder.prime(ids[:2])
    assert decoder.push(ids[2:]) == "\u20ac"


def test_a_character_that_the_prompt_left_broken_does_not_leak(model: ModelTokenizer) -> None:
    ids = byte_ids(model, b"\xe2\x82")
    decoder = model.decoder_tables.decoder(True)
    decoder.prime(ids)
    assert decoder.push(byte_ids(model, b"a")) + decoder.flush() == "a"
    alone = model.decoder_tables.decoder(True)
    alone.prime(ids)
    assert alone.flush() == ""


def test_the_space_in_front_of_a_text_goes_and_of_a_continuation_stays(
    sentencepiece: ModelTokenizer,
) -> None:
    ids = sentencepiece.encode("hello", False)
    assert sentencepiece.decoder_tables.decoder(True).push(ids) == "hello"
    decoder = sentencepiece.decoder_tables.decoder(True)
    decoder.prime(ids)
    assert decoder.push(ids) == " hello"


def test_other_decoders_know_what_goes_before(metaspace: DecoderTables) -> None:
    decoder = metaspace.decoder(True)
    decoder.prime([1])
    assert decoder.push([4]) + decoder.flush() == " c"


def test_special_tokens_do_not_end_a_run_of_bytes(sentencepiece: ModelTokenizer) -> None:
    first, second = byte_ids(sentencepiece, "\u00e9".encode())
    decoder = sentencepiece.decoder_tables.decoder(True)
    assert decoder.push([first, 2, second]) == "\u00e9"


def test_a_long_run_of_skipped_tokens_is_not_decoded_again_and_again(
    metaspace: DecoderTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = metaspace.decoder(True)
    assert isinstance(decoder, WindowDecoder)
    decode, longest = decoder._decode, 0

    def counting(token_ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return decode(token_ids)

    monkeypatch.setattr(decoder, "_decode", counting)
    special, word = 7, 4
    assert run(decoder, [1, *[special] * 500, word], [1]) == "a c"
    assert longest <= 2 * MAX_HELD_TOKENS
