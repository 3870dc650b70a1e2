from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagewire.model_source import resolve_model
from pagewire.tokenizer_fingerprint import fingerprint_of_model, vocabulary_fingerprint
from tests.pagewire.gguf_builder import ARRAY, GgufBuilder, strings

TOKENS = [(0, "<s>"), (1, "\u0120the"), (2, "a")]


def huggingface_directory(path: Path, model: dict[str, Any], added: list[Any]) -> Path:
    content = {"model": model, "added_tokens": added}
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def test_the_fingerprint_is_a_known_one() -> None:
    assert vocabulary_fingerprint([(0, "a"), (1, "b")]) == (
        "01acd39d91c7b2892601c69b7e8452f42e397467305a7d0a39f596db31f94fc2"
    )


def test_order_does_not_matter() -> None:
    assert vocabulary_fingerprint(reversed(TOKENS)) == vocabulary_fingerprint(TOKENS)


def test_ids_matter() -> None:
    assert vocabulary_fingerprint([(0, "a"), (1, "b")]) != vocabulary_fingerprint(
        [(0, "b"), (1, "a")]
    )


def test_where_a_token_ends_matters() -> None:
    assert vocabulary_fingerprint([(0, "ab"), (1, "c")]) != vocabulary_fingerprint(
        [(0, "a"), (1, "bc")]
    )


def test_an_id_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        vocabulary_fingerprint([(1, "a"), (1, "b")])


def test_a_gguf_file_and_a_directory_with_the_same_tokens_agree(tmp_path: Path) -> None:
    builder = GgufBuilder().key("tokenizer.ggml.tokens", ARRAY, strings([t for _, t in TOKENS]))
    file = builder.write(tmp_path / "x.gguf")
    model = {"type": "BPE", "vocab": {"\u0120the": 1, "a": 2}}
    directory = huggingface_directory(tmp_path, model, [{"id": 0, "content": "<s>"}])
    assert fingerprint_of_model(file) == fingerprint_of_model(directory)
    assert fingerprint_of_model(file) == vocabulary_fingerprint(TOKENS)


def test_a_unigram_vocabulary_is_read(tmp_path: Path) -> None:
    model = {"type": "Unigram", "vocab": [["<s>", 0.0], ["\u0120the", -1.5], ["a", -2.0]]}
    directory = huggingface_directory(tmp_path, model, [])
    assert fingerprint_of_model(directory) == vocabulary_fingerprint(TOKENS)


def test_a_slow_tokenizer_is_known_by_its_vocabulary_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"one")
    one = fingerprint_of_model(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"two")
    assert fingerprint_of_model(tmp_path) != one


def test_a_gguf_file_without_vocabulary_is_refused(tmp_path: Path) -> None:
    file = GgufBuilder().text("general.architecture", "llama").write(tmp_path / "x.gguf")
    with pytest.raises(ValueError, match="no vocabulary"):
        fingerprint_of_model(file)


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        fingerprint_of_model(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {}}', '{"model": {"vocab": 1}}'])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        fingerprint_of_model(tmp_path)


def test_the_embedded_models_fingerprint_is_stable() -> None:
    path = resolve_model("smollm2").path
    assert fingerprint_of_model(path) == fingerprint_of_model(path)
    assert len(fingerprint_of_model(path)) == 64
