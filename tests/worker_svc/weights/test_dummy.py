"""Random weights of a model's shape, for which no file of weights is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import DeviceConfig, EngineConfig, LoadConfig, ModelConfig
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.model_runner import ModelRunner
from worker_svc.models.config import UnsupportedModelError
from worker_svc.step import ModelInfo


def load(directory: Path, **model: Any) -> tuple[ModelRunner, ModelInfo]:
    config = EngineConfig(
        model=ModelConfig(model=str(directory), dtype="float32", **model),
        load=LoadConfig(load_format="dummy"),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    runner = ModelRunner(config)
    return runner, runner.load(lambda stage, fraction: None)


def outputs(runner: ModelRunner) -> list[list[int]]:
    driver = StepDriver(runner)
    requests = [driver.add([5, 6, seed], max_tokens=8) for seed in range(3)]
    driver.run()
    return [request.output_token_ids for request in requests]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path, architecture="Qwen2", tie_word_embeddings=True)
    (tmp_path / "model.safetensors").unlink()
    return tmp_path


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_same_weights_come_at_each_load(directory: Path, quantization: str) -> None:
    (first, info), (second, other) = (load(directory, quantization=quantization) for _ in range(2))
    assert outputs(first) == outputs(second)
    assert len({token for output in outputs(first) for token in output}) > 3
    assert info.weights_digest == other.weights_digest


def test_the_digest_is_not_that_of_real_weights(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    runner, info = load(tmp_path)
    real = ModelRunner(replace(runner._config, load=LoadConfig()))
    assert real.load(lambda stage, fraction: None).weights_digest != info.weights_digest


def test_the_transformers_backend_wants_real_weights(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    with pytest.raises(UnsupportedModelError, match="use auto"):
        load(tmp_path, model_impl="transformers")
