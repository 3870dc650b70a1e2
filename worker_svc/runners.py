"""Which runner executes steps: the simulated one, or the model runner with torch.

Owns the choice by `--device`, and what must stand in the environment before torch is imported.
Imports torch only when a real device is asked for. Called on the device thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagewire.engine_config import CacheConfig, EngineConfig
from pagewire.kit.cores import usable_cores
from worker_svc.sampler.version import DEVICE_SAMPLER_VERSION, SAMPLER_VERSION
from worker_svc.sim.sampling import SAMPLER_VERSION as SIM_SAMPLER_VERSION
from worker_svc.step import ModelInfo, Runner

if TYPE_CHECKING:
    from worker_svc.parallel.groups import ParallelGroups

RunnerFactory = Callable[[EngineConfig], Runner]


@dataclass(frozen=True, slots=True)
class RunnerDescription:
    """What the scheduler is told of a runner beside its model."""

    device: str
    sampler_version: str
    """Part of engine_fingerprint: equal versions draw equal tokens."""
    needs_memory: bool
    """The KV cache takes the bytes that `kv_bytes_per_block` says of this container's memory; a
    runner on a CUDA device looks after that memory itself."""


def make_runner(config: EngineConfig, groups: ParallelGroups | None = None) -> Runner:
    """A runner for the configured device, not loaded yet.

    Args:
        config: The engine's.
        groups: Those of this rank, of several.

    Raises:
        ValueError: A setting has no effect on the device.
        FailedPreconditionError: There is no such device.
    """
    if config.device.device == "sim":
        _check_no_cuda_settings(config)
        if config.attention.attention_backend != "auto":
            raise ValueError(
                "attention_backend has no effect on the simulated device: leave "
                "--attention-backend out"
            )
        if config.model.quantization != "none":
            raise ValueError(
                "quantization has no effect on the simulated device: leave --quantization out"
            )
        from worker_svc.sim.runner import SimRunner

        return SimRunner(config)
    from worker_svc.torch_runtime import find_device, make_model_runner

    if config.device.num_threads is None and groups is not None:
        # Ranks that wait for each other must not wait for each other's threads.
        num_threads = max(1, usable_cores() // groups.num_ranks_here)
        config = replace(config, device=replace(config.device, num_threads=num_threads))
    _set_num_threads(config.device.num_threads or usable_cores())
    device = find_device(config.device.device)
    if device == "cpu":
        _check_no_cuda_settings(config)
    config = replace(config, device=replace(config.device, device=device))
    return make_model_runner(config, groups)


def prepare_device() -> None:
    """Import what a runner of a real device needs, before anybody asks for one: it takes seconds.

    A runner made later is the same as without: what the configuration says of threads is set then.
    """
    _set_num_threads(usable_cores())
    from worker_svc.torch_runtime import import_model_runner

    import_model_runner()


def describe_runner(config: EngineConfig, info: ModelInfo) -> RunnerDescription:
    """What `make_runner` gave for `config`, once it has loaded its model."""
    if config.device.device == "sim":
        return RunnerDescription("sim", SIM_SAMPLER_VERSION, needs_memory=False)
    if info.device == "cpu":
        return RunnerDescription("cpu", SAMPLER_VERSION, needs_memory=True)
    return RunnerDescription(info.device, DEVICE_SAMPLER_VERSION, needs_memory=False)


def _set_num_threads(num_threads: int) -> None:
    """Read by OpenMP when torch is imported; later changes go through torch itself."""
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))


def _check_no_cuda_settings(config: EngineConfig) -> None:
    if config.cache.gpu_memory_utilization != CacheConfig().gpu_memory_utilization:
        raise ValueError(
            "gpu_memory_utilization has an effect on CUDA devices only: leave "
            "--gpu-memory-utilization out and set --kv-cache-memory-bytes"
        )
    if config.device.enforce_eager:
        raise ValueError(
            "enforce_eager has an effect on CUDA devices only: leave --enforce-eager out"
        )
