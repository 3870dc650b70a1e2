"""Which runner a configuration gets."""

from __future__ import annotations

import pytest
import torch

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    Device,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
)
from pagewire.kit.errors import FailedPreconditionError
from worker_svc.device import NO_CUDA
from worker_svc.runners import describe_runner, make_runner
from worker_svc.sim.runner import SimRunner
from worker_svc.step import ModelInfo


def make_info(device: str) -> ModelInfo:
    return ModelInfo(
        architecture="A",
        vocab_size=8,
        max_model_len=8,
        num_layers=1,
        num_kv_heads=1,
        head_dim=8,
        hidden_size=8,
        dtype="float32",
        attention_backend="torch",
        eos_token_ids=(),
        bos_token_id=None,
        weights_digest="",
        device=device,
    )


def test_the_simulated_device_has_the_simulated_runner() -> None:
    config = EngineConfig(device=DeviceConfig(device="sim"))
    assert isinstance(make_runner(config), SimRunner)


@pytest.mark.parametrize(
    ("name", "device", "host_memory"), [("sim", "cpu", False), ("auto", "cpu", True)]
)
def test_a_runner_is_described_by_what_auto_became(
    name: Device, device: str, host_memory: bool
) -> None:
    config = EngineConfig(device=DeviceConfig(device=name))
    description = describe_runner(config, make_info(device))
    assert description.device == ("sim" if name == "sim" else device)
    assert description.needs_memory == host_memory


def test_a_runner_on_cuda_looks_after_its_memory_itself() -> None:
    description = describe_runner(EngineConfig(), make_info("cuda"))
    assert (description.device, description.needs_memory) == ("cuda", False)
    on_cpu = describe_runner(EngineConfig(), make_info("cpu"))
    assert description.sampler_version != on_cpu.sampler_version


@pytest.mark.parametrize(
    ("built_for", "advice"), [(None, "constraints/gpu.txt"), ("13.0", "CUDA_VISIBLE_DEVICES")]
)
def test_cuda_is_refused_where_there_is_none(
    built_for: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(FailedPreconditionError, match="or use --device cpu") as caught:
        make_runner(EngineConfig(device=DeviceConfig(device="cuda")))
    assert advice in caught.value.message
    assert caught.value.reason == NO_CUDA


def test_the_simulated_device_has_no_attention_backend() -> None:
    config = EngineConfig(
        attention=AttentionConfig(attention_backend="xformers"), device=DeviceConfig(device="sim")
    )
    with pytest.raises(ValueError, match="--attention-backend"):
        make_runner(config)


def test_the_simulated_device_has_no_weights_to_quantize() -> None:
    config = EngineConfig(model=ModelConfig(quantization="int4"), device=DeviceConfig(device="sim"))
    with pytest.raises(ValueError, match="--quantization"):
        make_runner(config)


@pytest.mark.parametrize("device", ["cpu", "sim", "auto"])
def test_a_setting_of_cuda_alone_is_refused_elsewhere(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = EngineConfig(
        cache=CacheConfig(gpu_memory_utilization=0.5), device=DeviceConfig(device=device)
    )
    with pytest.raises(ValueError, match="--kv-cache-memory-bytes"):
        make_runner(config)
    eager = EngineConfig(device=DeviceConfig(device=device, enforce_eager=True))
    with pytest.raises(ValueError, match="leave --enforce-eager out"):
        make_runner(eager)
