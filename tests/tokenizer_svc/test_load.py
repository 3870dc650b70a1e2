from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.kit.errors import FailedPreconditionError
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.load import load_model


def config(tmp_path: Path, **fields: Any) -> TokenizerServiceConfig:
    path = byte_level_gguf().write(tmp_path / "model.gguf")
    return TokenizerServiceConfig(
        **{"model": str(path), "cache_dir": str(tmp_path / "cache"), **fields}
    )


def test_a_gguf_file_is_loaded(tmp_path: Path) -> None:
    model, templates = load_model(config(tmp_path))
    assert model.encode("hello", True)
    assert model.fingerprint == fingerprint_of_model(tmp_path / "model.gguf")
    assert set(templates.templates) == {"default"}


def test_a_directory_is_loaded(tmp_path: Path) -> None:
    given = config(tmp_path)
    directory = tmp_path / "hf"
    directory.mkdir()
    for name, content in convert_gguf(tmp_path / "model.gguf").items():
        (directory / name).write_bytes(content)
    model, _ = load_model(config(tmp_path, model=str(directory)))
    assert model.fingerprint == load_model(given)[0].fingerprint


def test_another_tokenizer_can_be_given(tmp_path: Path) -> None:
    model, _ = load_model(
        config(tmp_path, model="/nowhere", tokenizer=str(tmp_path / "model.gguf"))
    )
    assert model.encode("hello", True)


def test_another_template_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("T")
    _, templates = load_model(config(tmp_path, chat_template=str(tmp_path / "t.jinja")))
    assert templates.templates == {"default": "T"}


def test_a_broken_template_of_the_model_leaves_the_rest_working(tmp_path: Path) -> None:
    builder = byte_level_gguf()
    builder.keys.pop()
    path = builder.text("tokenizer.chat_template", "{% if %}").write(tmp_path / "x.gguf")
    model, templates = load_model(
        TokenizerServiceConfig(model=str(path), cache_dir=str(tmp_path / "cache"))
    )
    assert model.encode("hello", True)
    assert templates.templates == {}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "/nowhere"}, "/nowhere"),
        ({"model": "{tmp_path}"}, "config.json"),
        ({"model": "{tmp_path}/broken.gguf"}, "GGUF"),
        ({"chat_template": "/nowhere.jinja"}, "--chat-template"),
        ({"chat_template": "{tmp_path}/broken.jinja"}, "not valid Jinja"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, fields: dict[str, str], says: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a model at all, but long enough")
    (tmp_path / "broken.jinja").write_text("{% if %}")
    filled = {name: value.format(tmp_path=tmp_path) for name, value in fields.items()}
    with pytest.raises(FailedPreconditionError, match=says):
        load_model(config(tmp_path, **filled))
