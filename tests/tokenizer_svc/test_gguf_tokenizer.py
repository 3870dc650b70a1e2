from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from pagewire.gguf import GgufError
from tests.pagewire.gguf_builder import ARRAY, GgufBuilder, strings
from tests.tokenizer_svc.corpus import CORPUS, NUMBERS
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.model_tokenizer import ModelTokenizer


@pytest.fixture(scope="module")
def reference(transformers: Any, smollm2_path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name
    )


@pytest.mark.parametrize("text", CORPUS)
def test_tokens_are_those_of_transformers(
    smollm2: ModelTokenizer, reference: Any, text: str
) -> None:
    expected = reference.encode(text, add_special_tokens=False)
    assert smollm2.encode(text, False) == expected
    assert smollm2.encode(text, True) == reference.encode(text)


@pytest.mark.parametrize("text", [*CORPUS, *NUMBERS])
def test_numbers_are_split_as_smollm_was_trained(
    smollm2: ModelTokenizer, reference: Any, text: str
) -> None:
    # Transformers does not know the rule `smollm` and falls back to GPT-2's, where a run of spaces
    # or line ends before a number is cut in another place. With the model's own rule it agrees.
    own = Tokenizer.from_str(reference.backend_tokenizer.to_str())
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    assert smollm2.encode(text, False) == own.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", [*CORPUS, *NUMBERS])
def test_decoding_is_that_of_transformers(
    smollm2: ModelTokenizer, reference: Any, text: str
) -> None:
    ids = smollm2.encode(text, False)
    for skip in (True, False):
        [decoded] = smollm2.decode_batch([ids], skip)
        assert decoded == reference.decode(ids, skip_special_tokens=skip)


def test_special_tokens_are_those_of_transformers(smollm2: ModelTokenizer, reference: Any) -> None:
    added = reference.added_tokens_decoder
    special = {token_id for token_id, token in added.items() if token.special}
    assert smollm2.vocabulary.special_ids == special
    assert smollm2.special_tokens["eos_token"] == reference.eos_token
    assert smollm2.bos_token_id == reference.bos_token_id
    assert smollm2.eos_token_ids == (reference.eos_token_id,)


def test_transformers_loads_the_converted_files(
    smollm2_files: dict[str, bytes], smollm2: ModelTokenizer, transformers: Any, tmp_path: Path
) -> None:
    for name, content in smollm2_files.items():
        (tmp_path / name).write_bytes(content)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in (*CORPUS, *NUMBERS):
        assert loaded.encode(text) == smollm2.encode(text, True)
    message = [{"role": "user", "content": "hi"}]
    assert "<|im_start|>user\nhi<|im_end|>" in loaded.apply_chat_template(message, tokenize=False)


def test_conversion_is_deterministic(smollm2_path: Path, smollm2_files: dict[str, bytes]) -> None:
    assert convert_gguf(smollm2_path) == smollm2_files


def test_the_configuration_names_the_end_tokens(tmp_path: Path) -> None:
    files = convert_gguf(byte_level_gguf().write(tmp_path / "x.gguf"))
    assert json.loads(files["config.json"])["eos_token_id"] == [0]
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "<|end|>"


def test_several_chat_templates_are_kept(tmp_path: Path) -> None:
    builder = byte_level_gguf().text("tokenizer.chat_template.tool_use", "T")
    files = convert_gguf(builder.write(tmp_path / "x.gguf"))
    templates = json.loads(files["tokenizer_config.json"])["chat_template"]
    assert [entry["name"] for entry in templates] == ["default", "tool_use"]


def test_user_defined_tokens_are_whole_but_not_special(byte_level: ModelTokenizer) -> None:
    ids = byte_level.encode("a<think>b", False)
    assert len(ids) == 3
    assert byte_level.decode_batch([ids], True) == ["a<think>b"]


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "None"])
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, model: str) -> None:
    builder = GgufBuilder().text("tokenizer.ggml.model", model)
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(["a"]))
    with pytest.raises(GgufError, match=r"tokenizer\.ggml\.model"):
        convert_gguf(builder.write(tmp_path / "x.gguf"))
