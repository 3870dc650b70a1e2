"""What a profile of a worker may be, and what comes out of one.

Owns the bounds of a profile, the name of its file, the `StepProfiler` protocol and the choice of
one by device. Knows neither torch (a profiler is made on the device thread, where torch runs) nor
protobuf. `profile_run` runs profiles.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pagewire.kit.errors import InvalidRequestError, UnimplementedError

MAX_STEPS = 1000
MAX_SECONDS = 300
MAX_OPERATORS = 100
DEFAULT_NAME = "profile"
SUFFIX = ".pt.trace.json.gz"
"""What viewers of PyTorch's traces look for."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ProfileCall:
    """A profile that is asked for; the first limit that is reached ends it."""

    name: str = DEFAULT_NAME
    max_steps: int = MAX_STEPS
    max_seconds: int = MAX_SECONDS


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """What one operator took over a profile, without those that it called."""

    name: str
    calls: int
    self_cpu_ns: int
    self_device_ns: int
    """0 where the device is a CPU."""


@dataclass(frozen=True, slots=True)
class ProfileTimes:
    """Where the time of a profile went."""

    operators: Sequence[OperatorTime]
    """The costliest ones, at most `MAX_OPERATORS`, by falling time."""
    total_self_cpu_ns: int
    """Of all operators, as the next."""
    total_self_device_ns: int


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A profile that has ended."""

    path: Path
    num_steps: int
    duration_ns: int
    times: ProfileTimes


class StepProfiler(Protocol):
    """Records one profile; all but `save` is called on the device thread."""

    def start(self) -> None:
        """Begins to record."""

    def step(self, name: str) -> AbstractContextManager[object]:
        """Marks what runs inside as one step."""

    def after_step(self) -> bool:
        """Says whether no further step may be recorded: there is too much already."""

    def stop(self) -> None:
        """Records no more."""

    def save(self, path: Path) -> ProfileTimes:
        """Writes the trace and sums it up: seconds, so on another thread than the device's.

        Raises:
            OSError: The file cannot be written.
        """


ProfilerFactory = Callable[[str], StepProfiler]
"""Makes a profiler for a kind of device (`cpu`, `cuda`); called on the device thread."""


def make_profiler(device: str) -> StepProfiler:
    """The profiler of a kind of device."""
    from worker_svc.profiler import TorchProfiler

    return TorchProfiler(device)


def check_profile_call(call: ProfileCall) -> None:
    """Refuse a profile that would not end soon, or whose file would lie elsewhere.

    Raises:
        InvalidRequestError: Names the field.
    """
    rules = (
        (
            "name",
            _NAME.fullmatch(call.name) is not None,
            "must be 1 to 64 letters, digits, '.', '_' or '-', the first no dot",
        ),
        ("max_steps", 1 <= call.max_steps <= MAX_STEPS, f"must be 1 to {MAX_STEPS}"),
        ("max_seconds", 1 <= call.max_seconds <= MAX_SECONDS, f"must be 1 to {MAX_SECONDS}"),
    )
    for field, ok, rule in rules:
        if not ok:
            raise InvalidRequestError(f"{field} {rule}", reason="INVALID_PROFILE", field=field)


def check_can_profile(device: str) -> None:
    """Refuse a device whose steps have no operators.

    Raises:
        UnimplementedError: It is the simulated one.
    """
    if device == "sim":
        raise UnimplementedError(
            "the simulated worker runs no operators: profile a worker on a real device, or this "
            "process with py-spy (docs/operations.md)",
            reason="NOT_SERVED",
        )


def trace_path(directory: Path, name: str, rank: int) -> Path:
    """Where a new trace goes: a file of its own, though ranks and replicas may share the folder."""
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return directory / f"{name}-{time}-rank{rank}-{secrets.token_hex(4)}{SUFFIX}"
