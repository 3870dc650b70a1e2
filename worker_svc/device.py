"""The torch device of one rank: which it is, and the way of a step's arrays onto it.

Owns the choice by `--device`, the refusal where there is no such device, and the end where it is
lost. Knows nothing of models and steps. Used on the device thread.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from pagewire.engine_config import Device
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.lifecycle import exit_now
from pagewire.kit.logs import get_logger

log = get_logger("worker_svc.device")

P = ParamSpec("P")
R = TypeVar("R")
Lossy = TypeVar("Lossy", bound="HasDevice")

NO_CUDA = "NO_CUDA_DEVICE"
LOST_EXIT_CODE = 1
SHARED_DEVICE = "cpu"
"""What `device_id` says of a device that several ranks may have."""
CPU = torch.device("cpu")


class HasDevice(Protocol):
    """Who computes on a device."""

    exit_lost: Callable[[BaseException], object]
    """Ends the process, when the device is lost."""


def select_device(name: Device, rank: int = 0, num_ranks_here: int = 1) -> torch.device:
    """The device of a rank.

    Args:
        name: `--device`; `auto`: a CUDA device if there is one, else the CPU.
        rank: Of the replica; the ranks of a machine take its devices in turn.
        num_ranks_here: Ranks that share this machine.

    Raises:
        FailedPreconditionError: There is no CUDA device, or there are fewer than ranks.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CPU
    _check_cuda()
    num_devices = torch.cuda.device_count()
    # Who was given a single one may have been given another than the other ranks.
    is_given = num_devices == 1 and "CUDA_VISIBLE_DEVICES" in os.environ
    if num_devices < num_ranks_here and not is_given:
        raise FailedPreconditionError(
            f"{num_ranks_here} workers on this machine need as many CUDA devices, {num_devices} "
            "are visible: set --tensor-parallel-size or --pipeline-parallel-size lower",
            reason=NO_CUDA,
        )
    return torch.device("cuda", rank % num_devices)


def activate(device: torch.device) -> None:
    """Make it the one that this thread's CUDA calls mean; on a CPU nothing."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def device_id(device: torch.device) -> str:
    """What tells a CUDA device from all others; a CPU is shared."""
    if device.type == "cpu":
        return SHARED_DEVICE
    return str(torch.cuda.get_device_properties(device).uuid)


def put(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on the device.

    On a CPU it is the array's own memory. Onto a CUDA device it goes through pinned memory, and
    nobody waits: the order of the device's work is enough.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def put_list(values: list[int], device: torch.device) -> torch.Tensor:
    """Integers as an int64 tensor [len(values)] on the device."""
    return put(np.array(values, dtype=np.int64), device)


def exit_lost(error: BaseException) -> NoReturn:
    """End this process, for its supervisor to start it again.

    After an error of a kernel a CUDA device does nothing more for the process that it happened in:
    every later step would fail. Requests are computed again elsewhere, or here in a new process.
    """
    log.critical("device_lost", exc_info=error)
    exit_now(LOST_EXIT_CODE)


def ends_if_lost(
    method: Callable[Concatenate[Lossy, P], R],
) -> Callable[Concatenate[Lossy, P], R]:
    """A method in which an error of the device ends the process, see `exit_lost`."""

    @functools.wraps(method)
    def wrapped(owner: Lossy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(owner, *args, **kwargs)
        except torch.AcceleratorError as error:
            owner.exit_lost(error)
            raise

    return wrapped


def _check_cuda() -> None:
    if torch.version.cuda is None:
        raise FailedPreconditionError(
            f"device cuda: torch {torch.__version__} on the worker is built for CPUs alone: "
            "install pagewire[worker-gpu] with constraints/gpu.txt, or use --device cpu",
            reason=NO_CUDA,
        )
    if not torch.cuda.is_available():
        raise FailedPreconditionError(
            "device cuda: the worker sees no CUDA device: check its driver and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu",
            reason=NO_CUDA,
        )
