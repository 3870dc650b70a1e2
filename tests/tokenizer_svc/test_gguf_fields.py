from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.gguf import GgufError
from tests.pagewire.gguf_builder import (
    ARRAY,
    F32,
    I32,
    U32,
    GgufBuilder,
    number,
    numbers,
    string,
    strings,
)
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.gguf_fields import read_vocabulary


def vocabulary_of(*tokens: str) -> GgufBuilder:
    return GgufBuilder().key("tokenizer.ggml.tokens", ARRAY, strings(list(tokens)))


def refuse(builder: GgufBuilder, tmp_path: Path, match: str) -> None:
    with pytest.raises(GgufError, match=match):
        read_vocabulary(builder.write(tmp_path / "x.gguf"))


def test_fields_are_read(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(byte_level_gguf().write(tmp_path / "x.gguf"))
    assert vocabulary.model == "gpt2"
    assert vocabulary.pre == "smollm"
    assert vocabulary.token(vocabulary.bos_token_id) == "<|start|>"
    assert vocabulary.end_token_ids == (0,)
    assert vocabulary.merges is not None
    assert vocabulary.merges[2] == ("he", "ll")
    assert set(vocabulary.chat_templates) == {"default"}


def test_a_file_without_tokenizer_is_refused(tmp_path: Path) -> None:
    refuse(GgufBuilder().text("general.architecture", "llama"), tmp_path, "no tokenizer")


def test_a_token_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    refuse(vocabulary_of("a", "b", "a"), tmp_path, "twice")


def test_empty_tokens_get_names_of_their_own(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(vocabulary_of("a", "", "").write(tmp_path / "x.gguf"))
    assert vocabulary.tokens == ("a", "[EMPTY_1]", "[EMPTY_2]")


def test_types_of_another_number_of_tokens_are_refused(tmp_path: Path) -> None:
    builder = vocabulary_of("a").key("tokenizer.ggml.token_type", ARRAY, numbers(I32, [1, 1]))
    refuse(builder, tmp_path, "token_type")


def test_scores_of_another_number_of_tokens_are_refused(tmp_path: Path) -> None:
    builder = vocabulary_of("a").key("tokenizer.ggml.scores", ARRAY, numbers(F32, [1.0, 2.0]))
    refuse(builder, tmp_path, "scores")


@pytest.mark.parametrize("merge", ["ab", "a ", " b", "a b c", ""])
def test_a_merge_that_is_no_pair_is_refused(tmp_path: Path, merge: str) -> None:
    builder = vocabulary_of("a", "b").key("tokenizer.ggml.merges", ARRAY, strings([merge]))
    refuse(builder, tmp_path, "not a merge")


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    builder = vocabulary_of("a").key("tokenizer.ggml.eos_token_id", U32, number(U32, 1))
    refuse(builder, tmp_path, "eos_token_id")


def test_an_id_that_is_no_number_is_refused(tmp_path: Path) -> None:
    refuse(vocabulary_of("a").key("tokenizer.ggml.bos_token_id", 8, string("1")), tmp_path, "bos")


def test_all_end_ids_are_read_once(tmp_path: Path) -> None:
    builder = vocabulary_of("a", "b", "c")
    for name, token_id in (("eos", 2), ("eot", 0), ("eom", 2)):
        builder.key(f"tokenizer.ggml.{name}_token_id", U32, number(U32, token_id))
    assert read_vocabulary(builder.write(tmp_path / "x.gguf")).end_token_ids == (2, 0)


def test_named_chat_templates_are_read(tmp_path: Path) -> None:
    builder = vocabulary_of("a").text("tokenizer.chat_template", "A")
    builder.text("tokenizer.chat_template.tool_use", "B")
    vocabulary = read_vocabulary(builder.write(tmp_path / "x.gguf"))
    assert vocabulary.chat_templates == {"default": "A", "tool_use": "B"}
