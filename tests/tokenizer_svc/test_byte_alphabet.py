from __future__ import annotations

from tokenizer_svc.byte_alphabet import BYTES, SPELLINGS, unspell


def test_every_byte_has_a_character_of_its_own() -> None:
    assert len(SPELLINGS) == len(BYTES) == 256
    assert all(BYTES[character] == byte for byte, character in enumerate(SPELLINGS))


def test_the_spelling_is_the_usual_one() -> None:
    assert SPELLINGS[ord("a")] == "a"
    assert SPELLINGS[ord(" ")] == "\u0120"
    assert SPELLINGS[ord("\n")] == "\u010a"
    assert SPELLINGS[0xAD] == "\u0143"


def test_spelled_tokens_are_bytes() -> None:
    assert unspell("\u0120caf\u00c3\u00a9") == b" caf\xc3\xa9"


def test_a_token_with_another_character_is_plain_text() -> None:
    assert unspell("\u0120 \u65e5") == "\u0120 \u65e5".encode()
