from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pagewire.model_source import ModelFormat, ModelSource
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.hf_tokenizer import load_tokenizer
from tokenizer_svc.model_files import TokenizerFilesError, read_files


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    path = byte_level_gguf().write(tmp_path / "x.gguf")
    source = ModelSource(path, ModelFormat.GGUF)
    first = read_files(source, tmp_path / "cache")
    assert first == convert_gguf(path)
    assert len(list((tmp_path / "cache").rglob("*.zip"))) == 1
    assert read_files(source, tmp_path / "cache") == first


def test_a_directorys_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("not a tokenizer's")
    files = read_files(ModelSource(tmp_path, ModelFormat.HUGGING_FACE))
    assert set(files) == {"tokenizer.json", "config.json"}


def test_a_slow_tokenizer_is_converted_by_transformers(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"h": 0, "e": 1, "he": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    files = read_files(ModelSource(tmp_path, ModelFormat.HUGGING_FACE))
    assert load_tokenizer(files, "").encode("hehe", False) == [2, 2]


def test_without_transformers_a_slow_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TokenizerFilesError, match="pip install transformers"):
        read_files(ModelSource(tmp_path, ModelFormat.HUGGING_FACE))


def test_a_directory_that_transformers_cannot_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerFilesError, match="--tokenizer"):
        read_files(ModelSource(tmp_path, ModelFormat.HUGGING_FACE))
