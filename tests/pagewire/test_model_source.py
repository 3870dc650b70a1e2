from pathlib import Path

import pytest

from pagewire.model_source import (
    ModelFormat,
    ModelNotFoundError,
    resolve_model,
    resolve_tokenizer,
)


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    source = resolve_model("smollm2")
    assert source.format is ModelFormat.GGUF
    assert source.path.is_file()


def test_a_directory_with_a_config_is_a_hugging_face_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)).format is ModelFormat.HUGGING_FACE


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert resolve_model(str(tmp_path)).path == tmp_path / "model.gguf"


def test_an_empty_directory_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        resolve_model(str(tmp_path))


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ModelNotFoundError, match=r"not a \.gguf file"):
        resolve_model(str(file))


def test_a_name_that_is_nothing_says_what_it_could_be() -> None:
    with pytest.raises(ModelNotFoundError, match="hub id"):
        resolve_model("no-such-model")


def test_a_tokenizers_directory_needs_no_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    source = resolve_tokenizer(str(tmp_path))
    assert (source.path, source.format) == (tmp_path, ModelFormat.HUGGING_FACE)
    assert resolve_tokenizer("smollm2") == resolve_model("smollm2")


def test_a_tokenizer_that_is_nowhere_is_named_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"--tokenizer: directory .*config\.json"):
        resolve_tokenizer(str(tmp_path))
