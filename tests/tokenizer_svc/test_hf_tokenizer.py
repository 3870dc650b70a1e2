from __future__ import annotations

import json
from typing import Any

import pytest

from tokenizer_svc.hf_tokenizer import load_tokenizer
from tokenizer_svc.model_files import TokenizerFilesError
from tokenizer_svc.model_tokenizer import ModelTokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    content = {
        "version": "1.0",
        "added_tokens": [_added(0, "<s>"), _added(1, "</s>")],
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {"<s>": 0, "</s>": 1, "h": 2, "e": 3, "he": 4},
            "merges": [["h", "e"]],
        },
    }
    return {**content, **changes}


def _added(token_id: int, content: str, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def load(config: dict[str, Any] | None = None, **files: Any) -> ModelTokenizer:
    contents: dict[str, Any] = {"tokenizer.json": tokenizer_json(), **files}
    if config is not None:
        contents["tokenizer_config.json"] = config
    encoded = {
        name: value if isinstance(value, bytes) else json.dumps(value).encode()
        for name, value in contents.items()
    }
    return load_tokenizer(encoded, "fingerprint")


def test_a_bare_tokenizer_json_is_enough() -> None:
    model = load()
    assert model.encode("hehe", True) == [4, 4]
    assert model.eos_token_ids == ()
    assert model.bos_token_id is None
    assert model.chat_templates == {}


def test_special_tokens_come_from_the_configuration() -> None:
    model = load({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}})
    assert model.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (model.bos_token_id, model.eos_token_ids) == (0, (1,))


def test_special_tokens_come_from_the_map_where_the_configuration_is_silent() -> None:
    model = load({}, **{"special_tokens_map.json": {"eos_token": "</s>"}})
    assert model.special_tokens == {"eos_token": "</s>"}


def test_all_end_ids_are_known() -> None:
    model = load(
        {"eos_token": "</s>"},
        **{
            "generation_config.json": {"eos_token_id": [7, 1]},
            "config.json": {"eos_token_id": 9},
        },
    )
    assert model.eos_token_ids == (1, 7, 9)


def test_the_configurations_bos_and_eos_are_added() -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    assert load(config).encode("he", True) == [0, 4]
    assert load({**config, "add_eos_token": True}).encode("he", True) == [0, 4, 1]
    assert load({**config, "add_bos_token": False}).encode("he", True) == [4]
    assert load(config).encode("he", False) == [4]


def test_tokens_that_only_the_configuration_has_are_added() -> None:
    extra = {"content": "<tool>", "special": False, "normalized": False}
    model = load({"added_tokens_decoder": {"5": extra}})
    assert model.encode("he<tool>", True) == [4, 5]
    assert model.vocabulary.special_ids == {0, 1}


def test_named_tokens_become_special() -> None:
    model = load({"pad_token": "<pad>", "additional_special_tokens": ["<x>"]})
    assert model.encode("<pad><x>", True) == [5, 6]
    assert model.vocabulary.special_ids == {0, 1, 5, 6}


def test_truncation_and_padding_are_off() -> None:
    truncation = {
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    model = load(**{"tokenizer.json": tokenizer_json(truncation=truncation)})
    assert len(model.encode("he" * 5, True)) == 5


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": b"T", "chat_template.json": {"chat_template": "no"}},
        {"chat_template.json": {"chat_template": "T"}},
    ],
)
def test_a_template_of_its_own_file_goes_before_the_configurations(files: Any) -> None:
    assert load({"chat_template": "no"}, **files).chat_templates == {"default": "T"}


def test_the_configurations_templates_are_read() -> None:
    assert load({"chat_template": "T"}).chat_templates == {"default": "T"}
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    assert load({"chat_template": named}).chat_templates == {"default": "A", "tool_use": "B"}


PANICKING = {
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]],
        "continuing_subword_prefix": "##",
    }
}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"tokenizer.json": b"{"}, r"tokenizer\.json"),
        ({"tokenizer.json": {"model": {"type": "?", "vocab": {}}}}, r"tokenizer\.json"),
        # The library panics: a merge's second part is shorter than the prefix.
        ({"tokenizer.json": PANICKING}, r"tokenizer\.json"),
        ({"tokenizer_config.json": b"[]"}, r"tokenizer_config\.json"),
        ({"generation_config.json": b"\xff"}, r"generation_config\.json"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {}}}}, "unknown form"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"5": {}}}}, "unknown form"),
    ],
)
def test_a_broken_file_is_named(files: Any, named: str) -> None:
    with pytest.raises(TokenizerFilesError, match=named):
        load(**files)
