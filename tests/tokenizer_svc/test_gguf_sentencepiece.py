from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pagewire.gguf import GgufError
from tests.pagewire.gguf_builder import ARRAY, GgufBuilder, strings
from tests.tokenizer_svc.corpus import CORPUS, NUMBERS
from tests.tokenizer_svc.factories import load_gguf, sentencepiece_gguf
from tokenizer_svc.gguf_sentencepiece import merges_from_scores
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.model_tokenizer import ModelTokenizer


def tokens_of(model: ModelTokenizer, text: str) -> list[str | None]:
    return [model.tokenizer.id_to_token(i) for i in model.encode(text, False)]


def test_text_starts_with_a_space(sentencepiece: ModelTokenizer) -> None:
    assert tokens_of(sentencepiece, "hello w") == ["\u2581hello", "\u2581w"]


def test_the_space_in_front_can_be_off(tmp_path: Path) -> None:
    model = load_gguf(sentencepiece_gguf(add_space_prefix=False), tmp_path)
    assert tokens_of(model, "hello w") == ["hello", "\u2581w"]
    assert model.decode_batch([model.encode(" hello", False)], True) == [" hello"]


def test_unknown_characters_fall_back_to_bytes(sentencepiece: ModelTokenizer) -> None:
    assert tokens_of(sentencepiece, "h\u00e9")[2:] == ["<0xC3>", "<0xA9>"]


def test_bos_is_added_by_default(sentencepiece: ModelTokenizer) -> None:
    assert sentencepiece.encode("h", True)[0] == 1


@pytest.mark.parametrize("text", [*CORPUS, *NUMBERS])
def test_decoding_gives_the_text_back(sentencepiece: ModelTokenizer, text: str) -> None:
    if any(token in text for token in ("<unk>", "<s>", "</s>")):
        pytest.skip("special tokens")
    ids = sentencepiece.encode(text, False)
    # A spelled space in the text itself is a space afterwards; one leading space may go.
    expected = text.replace("\u2581", " ")
    [decoded] = sentencepiece.decode_batch([ids], False)
    assert decoded in (expected, expected.removeprefix(" "))


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_tokens_are_those_of_transformers(
    architecture: str, tmp_path: Path, transformers: Any
) -> None:
    model = load_gguf(sentencepiece_gguf(architecture), tmp_path)
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    path = str(tmp_path / "model.gguf")
    _, fields, _ = get_gguf_tokenizer(path)
    reference, _ = convert_gguf_tokenizer(architecture, fields)
    for text in (*CORPUS, *NUMBERS, "hello w hello", " hello  w", "hellohello"):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert model.encode(text, False) == expected, (text, os.path.basename(path))


def test_merges_come_best_score_first() -> None:
    merges = merges_from_scores(["a", "b", "ab", "abb"], [0, 0, 1, 2], [1, 1, 1, 1])
    assert merges == [("ab", "b"), ("a", "b")]


def test_control_tokens_are_no_parts_of_merges() -> None:
    assert merges_from_scores(["a", "b", "ab"], [0, 0, 1], [1, 3, 1]) == []


def test_gemmas_runs_of_spaces_are_respelled(tmp_path: Path) -> None:
    builder = GgufBuilder().text("general.architecture", "gemma")
    builder.text("tokenizer.ggml.model", "llama")
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(["a", "\u2581", "  ", "b"]))
    model = load_gguf(builder, tmp_path)
    assert model.encode("a  b", False) == [0, 2, 3]


def test_a_file_without_scores_is_refused(tmp_path: Path) -> None:
    builder = GgufBuilder().text("tokenizer.ggml.model", "llama")
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(["a", "b"]))
    with pytest.raises(GgufError, match="scores"):
        convert_gguf(builder.write(tmp_path / "x.gguf"))
