from __future__ import annotations

import pytest

from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.vocabulary import DecodingKind, byte_of_token, decoding_rule

SPM = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def test_a_byte_level_token_is_its_bytes(byte_level: ModelTokenizer) -> None:
    [token_id] = byte_level.encode("hello", False)
    assert byte_level.vocabulary.bytes_of(token_id) == b"hello"
    [token_id] = byte_level.encode("\u00e9"[:0] + " w", False)
    assert byte_level.vocabulary.bytes_of(token_id) == b" w"


def test_all_byte_level_tokens_are_as_the_library_decodes_them(smollm2: ModelTokenizer) -> None:
    vocabulary = smollm2.vocabulary
    ids = list(range(vocabulary.size))
    decoded = smollm2.decode_batch([[token_id] for token_id in ids], False)
    for token_id, text in zip(ids, decoded, strict=True):
        assert vocabulary.bytes_of(token_id).decode("utf-8", "replace") == text


def test_sentencepiece_tokens_are_text_or_a_byte(sentencepiece: ModelTokenizer) -> None:
    vocabulary = sentencepiece.vocabulary
    ids = {name: sentencepiece.tokenizer.token_to_id(name) for name in ("\u2581w", "<0xC3>")}
    assert vocabulary.bytes_of(ids["\u2581w"]) == b" w"
    assert vocabulary.bytes_of(ids["<0xC3>"]) == b"\xc3"


def test_an_id_outside_has_no_bytes(byte_level: ModelTokenizer) -> None:
    assert byte_level.vocabulary.bytes_of(10**9) == b""


def test_special_ids_are_known(byte_level: ModelTokenizer) -> None:
    assert byte_level.vocabulary.special_ids == {0, 1}


@pytest.mark.parametrize(
    ("decoder", "kind"),
    [
        ({"type": "ByteLevel", "use_regex": True}, DecodingKind.BYTE_LEVEL),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, DecodingKind.BYTE_LEVEL),
        ({"type": "Sequence", "decoders": SPM}, DecodingKind.BYTE_FALLBACK),
        ({"type": "Sequence", "decoders": [*SPM, STRIP]}, DecodingKind.BYTE_FALLBACK),
        ({"type": "Sequence", "decoders": [*SPM, {**STRIP, "stop": 1}]}, DecodingKind.OTHER),
        ({"type": "Sequence", "decoders": [*SPM[:2], STRIP]}, DecodingKind.OTHER),
        ({"type": "Metaspace", "replacement": "\u2581"}, DecodingKind.OTHER),
        ({"type": "WordPiece"}, DecodingKind.OTHER),
        (None, DecodingKind.OTHER),
    ],
)
def test_decoders_are_told_apart(decoder: dict[str, object] | None, kind: DecodingKind) -> None:
    assert decoding_rule(decoder).kind is kind


def test_a_replacement_by_regex_is_left_to_the_library() -> None:
    step = {"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [step, *SPM[1:]]}
    assert decoding_rule(decoder).kind is DecodingKind.OTHER


@pytest.mark.parametrize(
    ("token", "byte"),
    [("<0x0A>", 10), ("<0xff>", 255), ("<0xG0>", None), ("<0x0A", None), ("<0x00A>", None)],
)
def test_byte_tokens_are_recognized(token: str, byte: int | None) -> None:
    assert byte_of_token(token) == byte
