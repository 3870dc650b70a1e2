"""A model that cannot be served keeps a stack from starting: one clear line, exit code 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pagewire.model_source import resolve_model
from tests.e2e.stack import Stack
from tests.worker_svc import tiny_models

VOCAB_SIZE = 160


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A small model with a tokenizer, which could be served."""
    tiny_models.write_tiny_model(tmp_path, vocab_size=VOCAB_SIZE)
    vocab = {f"t{index}": index for index in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(vocab, unk_token="t0")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def change_config(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def assert_refused(reason: str, *flags: str) -> None:
    stack = Stack(flags)
    try:
        assert stack.end() == 1
        errors = [line for line in stack.stderr().splitlines() if "error" in line]
        assert len(errors) == 1, stack.stderr()
        assert errors[0].startswith("error: ") and reason in errors[0], errors[0]
        assert psutil.wait_procs(stack.processes(), timeout=0)[1] == []
    finally:
        stack.close()


def test_a_truncated_file(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert_refused("model.safetensors: tensor", f"--model={directory}", "--device=cpu")


def test_a_truncated_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(resolve_model("smollm2").path, path)
    with path.open("r+b") as file:
        file.truncate(60_000_000)
    assert_refused("ends behind the end of the file", f"--model={path}")


def test_weights_of_a_type_that_is_none(directory: Path) -> None:
    save_file(
        {"model.norm.weight": torch.ones(64, dtype=torch.int32)}, directory / "model.safetensors"
    )
    assert_refused("tensor model.norm.weight has unsupported type I32", f"--model={directory}")


def test_an_architecture_that_nobody_knows(directory: Path) -> None:
    change_config(directory, architectures=["NobodyForCausalLM"], model_type="nobody")
    assert_refused("NobodyForCausalLM", f"--model={directory}")


def test_too_little_memory(directory: Path) -> None:
    flags = (f"--model={directory}", "--kv-cache-memory-bytes=20000")
    assert_refused("--kv-cache-memory-bytes", *flags)
