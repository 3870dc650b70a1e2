"""What `pagewire profile` prints: where each worker's trace is, and the costliest operators.

Times of several workers are added up, operator by operator. Pure text; it asks nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.v1 import worker_pb2

NUM_OPERATORS = 10
_MAX_NAME_CHARS = 60
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


@dataclass(slots=True)
class _Sum:
    """One operator over all workers."""

    calls: int = 0
    cpu_ns: int = 0
    device_ns: int = 0


def worker_lines(
    targets: Sequence[str], results: Sequence[worker_pb2.StopProfileResponse]
) -> list[str]:
    """Return a line a worker: how much was recorded, and where the trace is on its machine."""
    lines = []
    for target, result in zip(targets, results, strict=True):
        seconds = result.duration_ns / _NS_PER_S
        lines.append(f"{target}: {result.num_steps} steps in {seconds:.2f} s: {result.path}")
    return lines


def operator_table(results: Iterable[worker_pb2.StopProfileResponse]) -> list[str]:
    """Return the lines of the table: time of operators themselves, without those that they call."""
    results = list(results)
    if not any(result.num_steps for result in results):
        return ["no step ran meanwhile: send requests while the profile runs"]
    sums: defaultdict[str, _Sum] = defaultdict(_Sum)
    for operator in (operator for result in results for operator in result.operators):
        entry = sums[operator.name]
        entry.calls += operator.calls
        entry.cpu_ns += operator.self_cpu_ns
        entry.device_ns += operator.self_device_ns
    total_cpu_ns = sum(result.total_self_cpu_ns for result in results)
    total_device_ns = sum(result.total_self_device_ns for result in results)
    has_device = total_device_ns > 0

    def cost(entry: _Sum) -> int:
        return entry.device_ns if has_device else entry.cpu_ns

    falling = sorted(sums.items(), key=lambda item: cost(item[1]), reverse=True)[:NUM_OPERATORS]
    total_ns = max(1, total_device_ns if has_device else total_cpu_ns)
    heads = ["operator", "calls", "CPU ms", *(["device ms"] if has_device else []), "share"]
    rows = [
        [
            _short(name),
            str(entry.calls),
            f"{entry.cpu_ns / _NS_PER_MS:.1f}",
            *([f"{entry.device_ns / _NS_PER_MS:.1f}"] if has_device else []),
            f"{100 * cost(entry) / total_ns:.1f} %",
        ]
        for name, entry in falling
    ]
    return _aligned([heads, *rows])


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
