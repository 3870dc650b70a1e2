"""Which runner a configuration gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    Device,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
)
from worker_svc.runners import describe_runner, make_runner, usable_cores
from worker_svc.sim.runner import SimRunner


def test_the_simulated_device_has_the_simulated_runner() -> None:
    config = EngineConfig(device=DeviceConfig(device="sim"))
    assert isinstance(make_runner(config), SimRunner)
    assert not describe_runner(config).needs_memory


def test_cuda_is_refused_with_what_to_use() -> None:
    with pytest.raises(ValueError, match="--device cpu"):
        make_runner(EngineConfig(device=DeviceConfig(device="cuda")))


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
def test_a_setting_of_cuda_alone_is_refused_elsewhere(device: Device) -> None:
    config = EngineConfig(
        cache=CacheConfig(gpu_memory_utilization=0.5), device=DeviceConfig(device=device)
    )
    with pytest.raises(ValueError, match="--kv-cache-memory-bytes"):
        make_runner(config)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("50000 100000", 1), ("10000000 100000", None)]
)
def test_cores_are_cut_to_the_containers_quota(
    tmp_path: Path, text: str, cores: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    expected = len(os.sched_getaffinity(0)) if cores is None else cores
    assert usable_cores(tmp_path) == expected


def test_without_a_quota_all_cores_are_usable(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("50000", 1)])
def test_the_quota_of_cgroup_version_1_counts_too(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    expected = len(os.sched_getaffinity(0)) if cores is None else cores
    assert usable_cores(tmp_path) == expected
