"""Tiny models as GGUF files against transformers, which read them as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc import tiny_models
from tests.worker_svc.test_model_runner import assert_greedy_parity
from tests.worker_svc.tiny_gguf import write_gguf
from tests.worker_svc.transformer_families import write_family
from worker_svc.model_runner import ModelRunner
from worker_svc.models.config import UnsupportedModelError

LENGTHS = (1, 7, 40)
MAX_TOKENS = 12


def make_runner(path: Path, model_impl: Any) -> ModelRunner:
    config = ModelConfig(model=str(path), dtype="float32", model_impl=model_impl)
    runner = ModelRunner(
        EngineConfig(model=config, device=DeviceConfig(device="cpu", num_threads=1))
    )
    runner.load(lambda stage, fraction: None)
    return runner


@pytest.mark.parametrize("model_impl", ["pagewire", "transformers"])
@pytest.mark.parametrize(
    ("variant", "architecture"),
    [
        ("grouped-query", "llama"),
        ("tied", "llama"),
        ("rope llama3", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ],
)
def test_greedy_ids_equal_those_of_transformers(
    variant: str, architecture: str, model_impl: Any, tmp_path: Path
) -> None:
    model = tiny_models.write_tiny_model(tmp_path / "hf", **tiny_models.VARIANTS[variant])
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, architecture)
    assert_greedy_parity(model, make_runner(path, model_impl), LENGTHS, MAX_TOKENS)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemma2", {"head_dim": 24, "query_pre_attn_scalar": 24}),
        ("gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}),
    ],
)
def test_gemma_runs_on_the_transformers_backend(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = write_family(tmp_path / "hf", family, **fields)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, family)
    assert_greedy_parity(model, make_runner(path, "auto"), LENGTHS, MAX_TOKENS)


@pytest.mark.parametrize(
    ("factors", "problem"),
    [
        (np.ones(7, np.float32), "not 8 numbers of type F32"),
        (np.ones(8, np.float16), "not 8 numbers of type F32"),
        (np.zeros(8, np.float32), "no positive factors"),
        (np.full(8, np.nan, np.float32), "no positive factors"),
    ],
    ids=["too few", "another type", "zero", "nan"],
)
def test_factors_of_the_rotation_that_are_none_are_refused(
    factors: Any, problem: str, tmp_path: Path
) -> None:
    model = tiny_models.write_tiny_model(tmp_path / "hf")
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, "llama", factors)
    with pytest.raises(UnsupportedModelError, match=problem):
        make_runner(path, "auto")
