"""Random weights of a model's shape, for which no file of weights is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.engine_config import DeviceConfig, EngineConfig, LoadConfig, ModelConfig
from pagewire.kit.errors import FailedPreconditionError
from pagewire.model_source import resolve_model
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.model_runner import ModelRunner
from worker_svc.models.build import build_model
from worker_svc.models.config import UnsupportedModelError
from worker_svc.step import ModelInfo
from worker_svc.weights.dummy_source import DummySource


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


def test_a_device_whose_share_they_exceed_is_told_of_by_its_own_flags(directory: Path) -> None:
    """Memory of a device is taken when a model is made; what is left of the share says if it fits.

    Tensors that have no memory stand for a device's.
    """
    source = DummySource.of(resolve_model(str(directory), None))
    with pytest.raises(FailedPreconditionError, match="--gpu-memory-utilization") as caught:
        build_model(
            source,
            ModelConfig(model=str(directory)),
            torch.bfloat16,
            lambda stage, fraction: None,
            device=torch.device("meta"),
            weight_limit=lambda: -(2**20),
        )
    assert int(caught.value.metadata["needed_bytes"]) > 160 * 64 * 2  # the embedding's
    assert caught.value.metadata["missing_bytes"] == str(2**20)
    assert "--quantization" not in caught.value.message
