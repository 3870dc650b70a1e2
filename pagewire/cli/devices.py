"""How replicas of one machine divide its devices: the cores of a CPU, or CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pagewire.kit.config import ConfigError
from pagewire.kit.cores import usable_cores

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def threads_of_worker(num_workers: int) -> int:
    """Return the threads of each of so many workers on this machine."""
    return max(1, usable_cores() // num_workers)


def count_cuda_devices(devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA devices this machine shows, without their driver's library."""
    return len(list(devices.glob("nvidia[0-9]*")))


def devices_of_replica(
    replica: int,
    num_replicas: int,
    num_workers: int,
    given: str | None,
    count: Callable[[], int] = count_cuda_devices,
) -> str | None:
    """Return CUDA_VISIBLE_DEVICES for the workers of a replica; None: leave it as it is.

    Args:
        replica: Number of the replica.
        num_replicas: Of the stack.
        num_workers: Of each replica; each wants a device.
        given: What the variable is in our own environment.
        count: Counts the machine's devices, when nothing is given.

    Raises:
        ConfigError: There are devices, but too few.
    """
    names = _visible(given) if given is not None else [str(number) for number in range(count())]
    if not names:
        return None
    if len(names) < num_replicas * num_workers:
        raise ConfigError(
            f"--data-parallel-size {num_replicas} with {num_workers} workers a replica needs"
            f" {num_replicas * num_workers} CUDA devices, {len(names)} are there; use fewer"
            " replicas, or --device cpu"
        )
    return ",".join(names[replica * num_workers : (replica + 1) * num_workers])


def _visible(given: str) -> list[str]:
    """Return the devices that a value of CUDA_VISIBLE_DEVICES shows.

    As CUDA reads it: what comes after one that cannot be is hidden, and -1 is there to say so.
    """
    names = [name.strip() for name in given.split(",")]
    hidden = [place for place, name in enumerate(names) if name.startswith("-")]
    return [name for name in names[: hidden[0] if hidden else None] if name]
