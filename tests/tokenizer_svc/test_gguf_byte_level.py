from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.gguf import GgufError
from tests.pagewire.gguf_builder import ARRAY, BOOL, GgufBuilder, number, strings
from tests.tokenizer_svc.factories import byte_level_gguf, load_gguf
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.model_tokenizer import ModelTokenizer


def pieces(tmp_path: Path, pre: str, text: str) -> list[str]:
    """What the pre-tokenizer makes of a text, spaces spelled as underscores."""
    tokenizer = load_gguf(byte_level_gguf(pre), tmp_path).tokenizer
    split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [piece.replace("\u0120", "_") for piece, _ in split]


def test_smollm_splits_every_digit(tmp_path: Path) -> None:
    assert pieces(tmp_path, "smollm", "in  2024") == ["in", "__", "2", "0", "2", "4"]


def test_gpt2_keeps_numbers_together(tmp_path: Path) -> None:
    assert pieces(tmp_path, "gpt-2", "in  2024") == ["in", "_", "_2024"]


def test_llama_3_takes_three_digits_together(tmp_path: Path) -> None:
    assert pieces(tmp_path, "llama-bpe", "in 20245") == ["in", "_", "202", "45"]


def test_qwen_2_splits_every_digit_after_its_space(tmp_path: Path) -> None:
    assert pieces(tmp_path, "qwen2", "in 20") == ["in", "_", "2", "0"]


def test_llama_3_attaches_punctuation_to_the_word_behind(tmp_path: Path) -> None:
    assert pieces(tmp_path, "llama-bpe", "(word)") == ["(word", ")"]


def test_qwen_2_normalizes(tmp_path: Path) -> None:
    model = load_gguf(byte_level_gguf("qwen2"), tmp_path)
    assert model.encode("e\u0301", False) == model.encode("\u00e9", False)


def test_others_do_not_normalize(byte_level: ModelTokenizer) -> None:
    assert byte_level.encode("e\u0301", False) != byte_level.encode("\u00e9", False)


@pytest.mark.parametrize(("pre", "num_tokens"), [("llama-bpe", 1), ("smollm", 2)])
def test_llama_3_prefers_whole_tokens_over_merges(
    tmp_path: Path, pre: str, num_tokens: int
) -> None:
    model = load_gguf(byte_level_gguf(pre, unmerged=["lo"]), tmp_path)
    assert len(model.encode("lo", False)) == num_tokens


def test_merges_of_tokens_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="does not fit"):
        load_gguf(byte_level_gguf(merges=("h e", "he lo")), tmp_path)


def test_llama_3_adds_bos_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert load_gguf(byte_level_gguf("llama-bpe"), tmp_path).encode("h", True)[0] == 1


def test_the_files_word_on_bos_counts(tmp_path: Path) -> None:
    builder = byte_level_gguf("llama-bpe")
    builder.key("tokenizer.ggml.add_bos_token", BOOL, number(BOOL, False))
    assert load_gguf(builder, tmp_path).encode("h", True)[0] != 1


def test_smollm_adds_no_bos(byte_level: ModelTokenizer) -> None:
    assert byte_level.encode("h", True) == byte_level.encode("h", False)


@pytest.mark.parametrize("pre", ["", "default", "tekken", "SMOLLM"])
def test_an_unknown_rule_is_refused(tmp_path: Path, pre: str) -> None:
    path = byte_level_gguf(pre).write(tmp_path / "x.gguf")
    with pytest.raises(GgufError, match=r"tokenizer\.ggml\.pre"):
        convert_gguf(path)


def test_a_file_without_merges_is_refused(tmp_path: Path) -> None:
    builder = GgufBuilder().text("tokenizer.ggml.model", "gpt2")
    builder.text("tokenizer.ggml.pre", "smollm")
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(["a", "b"]))
    with pytest.raises(GgufError, match="merges"):
        convert_gguf(builder.write(tmp_path / "x.gguf"))


def test_merges_are_followed(byte_level: ModelTokenizer) -> None:
    tokens = [byte_level.tokenizer.id_to_token(i) for i in byte_level.encode("hello w", False)]
    assert tokens == ["hello", "\u0120w"]
