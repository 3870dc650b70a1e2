"""From the spans of a profile to the time of each operator itself, without what it called.

Spans of one thread nest. What ran on a device counts in full: nothing nests there. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from worker_svc.profiling import MAX_OPERATORS, OperatorTime, ProfileTimes


class Span(NamedTuple):
    """One call of an operator, as spans sort: a caller comes before what it calls."""

    thread: int
    start_ns: int
    negative_duration_ns: int
    name: str
    is_on_device: bool

    @property
    def end_ns(self) -> int:
        return self.start_ns - self.negative_duration_ns


@dataclass(slots=True)
class _Sum:
    """Of all calls of one operator."""

    calls: int = 0
    cpu_ns: int = 0
    device_ns: int = 0


class TimeSums:
    """Adds spans up by operator; those of one call of `add` nest among themselves only."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def add(self, spans: Iterable[Span]) -> None:
        # Spans that are open, the innermost last, each with its thread and operator.
        callers: list[tuple[int, int, _Sum]] = []
        for span in sorted(spans):
            entry = self._sums.setdefault(span.name, _Sum())
            entry.calls += 1
            duration_ns = -span.negative_duration_ns
            if span.is_on_device:
                entry.device_ns += duration_ns
                continue
            while callers and (callers[-1][0] != span.thread or callers[-1][1] <= span.start_ns):
                callers.pop()
            if callers:
                callers[-1][2].cpu_ns -= duration_ns
            entry.cpu_ns += duration_ns
            callers.append((span.thread, span.end_ns, entry))

    def times(self) -> ProfileTimes:
        falling = sorted(
            (
                OperatorTime(name, entry.calls, max(0, entry.cpu_ns), entry.device_ns)
                for name, entry in self._sums.items()
            ),
            key=_cost,
            reverse=True,
        )
        return ProfileTimes(
            falling[:MAX_OPERATORS],
            sum(operator.self_cpu_ns for operator in falling),
            sum(operator.self_device_ns for operator in falling),
        )


def _cost(operator: OperatorTime) -> tuple[int, int]:
    """The device's time says more, where there is any."""
    return operator.self_device_ns, operator.self_cpu_ns
