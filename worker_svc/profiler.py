"""PyTorch's profiler as a `StepProfiler`: a Chrome trace, and the time of each operator.

Owns the file, and which of PyTorch's events count. Records the thread that calls `start`, the
device thread, and what that thread has a CUDA device do. Also here: `region`, with which the runner
names the parts of a step.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torch._C._autograd import DeviceType
from torch._C._profiler import _RecordFunctionFast
from torch.profiler import ProfilerActivity, profile, record_function

from worker_svc.profile_times import Span, sum_times
from worker_svc.profiling import ProfileTimes

_STEP = "step"
_GZIP_LEVEL = 3

region: Callable[[str], AbstractContextManager[None]] = _RecordFunctionFast
"""Names a part of a step in traces; costs next to nothing while none is taken."""


class TorchProfiler:
    """One profile of the device thread."""

    def __init__(self, device: str) -> None:
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)

    def start(self) -> None:
        self._profile.start()

    def step(self, name: str) -> AbstractContextManager[object]:
        return record_function(f"{_STEP}: {name}")

    def stop(self) -> None:
        self._profile.stop()

    def save(self, path: Path) -> ProfileTimes:
        raw, packed = path.with_name(f".{path.name}.raw"), path.with_name(f".{path.name}.packed")
        try:
            self._profile.export_chrome_trace(str(raw))
            with raw.open("rb") as trace, gzip.open(packed, "wb", _GZIP_LEVEL) as file:
                shutil.copyfileobj(trace, file)
            packed.replace(path)
        finally:
            raw.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        # Not key_averages(), which takes fifteen times as long and holds up the event loop.
        return sum_times(self._spans())

    def _spans(self) -> Iterator[Span]:
        profiler = self._profile.profiler
        results = profiler.kineto_results if profiler is not None else None
        for event in results.events() if results is not None else ():
            is_on_device = event.device_type() != DeviceType.CPU
            if event.is_async() or (is_on_device and event.is_user_annotation()):
                continue  # a region's span on the device, whose kernels count themselves
            name = event.name()
            yield Span(
                event.start_thread_id(),
                event.start_ns(),
                -event.duration_ns(),
                _STEP if name.startswith(f"{_STEP}: ") else name,
                is_on_device,
            )
