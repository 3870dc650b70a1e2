from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagewire.model_source import resolve_model
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from tests.tokenizer_svc.factories import byte_level_gguf, load_gguf, sentencepiece_gguf
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.hf_tokenizer import load_tokenizer
from tokenizer_svc.model_tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return resolve_model("smollm2").path


@pytest.fixture(scope="session")
def smollm2_files(smollm2_path: Path) -> dict[str, bytes]:
    return convert_gguf(smollm2_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_files: dict[str, bytes], smollm2_path: Path) -> ModelTokenizer:
    return load_tokenizer(smollm2_files, fingerprint_of_model(smollm2_path))


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return load_gguf(byte_level_gguf(), tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return load_gguf(sentencepiece_gguf(), tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session")
def transformers() -> Iterator[Any]:
    """The library itself, as the reference; it is slow to import."""
    import transformers

    yield transformers
