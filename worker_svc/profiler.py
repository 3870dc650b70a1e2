"""PyTorch's profiler as a `StepProfiler`: a Chrome trace, and the time of each operator.

Owns the file, and which of PyTorch's events count. Records the thread that calls `start`, the
device thread, and what that thread has a CUDA device do. Also here: `region`, with which the runner
names the parts of a step.

PyTorch gathers and writes what it recorded with the interpreter's lock held: 300,000 events, 40
steps of a small model on a CPU, take two seconds or more, and the event loop with its heartbeats
stands still. So a profile is recorded in segments of about `SEGMENT_EVENTS`, cut between steps,
and they are one trace in the end. How many events there are is known behind a segment alone, so
steps with more of them than those before end theirs by the time that they take.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from torch._C._autograd import DeviceType, _KinetoEvent
from torch._C._profiler import _RecordFunctionFast

# Not torch.profiler.profile, which imports a compiler, 900 modules, when it starts.
from torch.autograd.profiler import profile, record_function

from worker_svc.profile_times import Span, TimeSums
from worker_svc.profiling import ProfileTimes

SEGMENT_EVENTS = 20_000
SEGMENT_S = 0.25
"""Of steps. Some 100,000 events a second are recorded."""
MAX_EVENTS = 1_000_000
"""What a profile may hold in memory: some hundred megabytes."""

_STEP = "step"
_GZIP_LEVEL = 3

region: Callable[[str], AbstractContextManager[None]] = _RecordFunctionFast
"""Names a part of a step in traces; costs next to nothing while none is taken."""


class TorchProfiler:
    """One profile of the device thread."""

    def __init__(self, device: str) -> None:
        self._device = "cuda" if device == "cuda" else None
        self._segments: list[profile] = []
        self._current: profile | None = None
        self._num_steps = 0
        self._steps_s = 0.0
        self._steps_per_segment = 1
        self._num_events = 0

    def start(self) -> None:
        self._num_steps, self._steps_s = 0, 0.0
        self._current = profile(use_kineto=True, use_device=self._device)
        self._current.__enter__()  # type: ignore[no-untyped-call]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        with record_function(f"{_STEP}: {name}"):
            yield
        self._steps_s += time.monotonic() - begin

    def after_step(self) -> bool:
        self._num_steps += 1
        if self._num_steps >= self._steps_per_segment or self._steps_s >= SEGMENT_S:
            self.stop()
            self.start()
        return self._num_events >= MAX_EVENTS

    def stop(self) -> None:
        segment, self._current = self._current, None
        if segment is None:
            return
        segment.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._segments.append(segment)
        num_events = len(_events(segment))
        self._num_events += num_events
        per_step = max(1, num_events // max(1, self._num_steps))
        self._steps_per_segment = max(1, SEGMENT_EVENTS // per_step)

    def save(self, path: Path) -> ProfileTimes:
        raw, packed = path.with_name(f".{path.name}.raw"), path.with_name(f".{path.name}.packed")
        try:
            with gzip.open(packed, "wt", _GZIP_LEVEL) as file:
                _write_all(file, self._segments, raw)
            packed.replace(path)
        finally:
            raw.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        sums = TimeSums()
        for segment in self._segments:
            sums.add(_spans(segment))
        return sums.times()


def _write_all(file: TextIO, segments: list[profile], raw: Path) -> None:
    """Write the traces of all segments as one; `raw` is for one at a time."""
    for number, segment in enumerate(segments):
        segment.export_chrome_trace(str(raw))  # type: ignore[no-untyped-call]
        trace = json.loads(raw.read_text())
        events = trace.pop("traceEvents")
        if number == 0:
            file.write(f'{json.dumps(trace)[:-1]}, "traceEvents": [\n{json.dumps(events)[1:-1]}')
        else:
            # Names of processes and threads are known from the first one.
            later = [event for event in events if event.get("ph") != "M"]
            file.write(f",\n{json.dumps(later)[1:-1]}" if later else "")
    file.write("]}\n")


def _spans(segment: profile) -> Iterator[Span]:
    # Not key_averages(), which takes fifteen times as long.
    for event in _events(segment):
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


def _events(segment: profile) -> list[_KinetoEvent]:
    results = segment.kineto_results
    return [] if results is None else results.events()
