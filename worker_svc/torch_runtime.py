"""The environment that torch must find when it is first imported, and the way to a model runner.

Owns the settings of MKL and OpenMP. Imports no torch at its top: the worker imports this freely,
and calls `make_model_runner` on its device thread.
"""

from __future__ import annotations

import gc
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from worker_svc.torch_import import import_torch

if TYPE_CHECKING:
    from pagewire.engine_config import Device, EngineConfig
    from worker_svc.parallel.groups import ParallelGroups
    from worker_svc.parallel.layout import RankLayout
    from worker_svc.parallel.membership import RankMembership
    from worker_svc.step import Runner

_CPUINFO = Path("/proc/cpuinfo")


def prepare_environment() -> None:
    """Sets what is unset in `os.environ`; has no effect once torch is imported. Idempotent."""
    # One kernel for any number of rows, so that float32 gives the same bits whatever the batch.
    os.environ.setdefault("MKL_CBWR", f"{_widest_instructions()},STRICT")
    # Spinning threads would starve the other services on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # torch.distributed prints a C++ stack trace for every peer that ends; we get an exception too.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # The profiler tells standard error of each of its stages; higher than any level of it.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # torch reads the metadata of every installed package for plug-ins of devices, none of ours.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def find_device(name: Device) -> Literal["cpu", "cuda"]:
    """The kind of device that `--device` means here. Imports torch, but for a CPU.

    Raises:
        FailedPreconditionError: There is no such device.
    """
    if name == "cpu":
        return "cpu"
    _import_torch()
    from worker_svc.device import select_device

    return "cpu" if select_device(name).type == "cpu" else "cuda"


def import_model_runner() -> None:
    """Import torch and what a model runner needs; idempotent."""
    _import_torch()
    importlib.import_module("worker_svc.model_runner")
    # All that stays, and a collection in the middle of steps would walk through it.
    gc.freeze()


def make_model_runner(config: EngineConfig, groups: ParallelGroups | None = None) -> Runner:
    """A runner for `config`, not loaded yet. Imports torch: seconds, the first time."""
    _import_torch()
    from worker_svc.model_runner import ModelRunner

    return ModelRunner(config) if groups is None else ModelRunner(config, groups)


def make_membership(layout: RankLayout, host: str) -> RankMembership:
    """A rank's place in its replica. Imports torch, as above."""
    _import_torch()
    from worker_svc.parallel.membership import RankMembership

    return RankMembership(layout, host)


def _import_torch() -> None:
    prepare_environment()
    import_torch()


def _widest_instructions() -> str:
    flags = _CPUINFO.read_text(encoding="utf-8") if _CPUINFO.is_file() else ""
    return "AVX512" if " avx512f" in flags and " avx512bw" in flags else "AVX2"
