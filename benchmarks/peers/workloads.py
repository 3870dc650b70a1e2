"""What every server is asked: the rows of the table, each with its figure.

Flags are those of `pagewire bench serve`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST_TOKEN_ID, END_TOKEN_ID = 1000, 40_000
Report = Mapping[str, Any]
"""`figures` of what `pagewire bench serve` writes."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row."""

    name: str
    unit: str
    streams: int
    num_prompts: int
    input_len: int
    output_len: int
    figure: Callable[[Report], float]
    prefix_len: int = 0
    pattern_len: int = 0
    """Prompts say these many tokens again and again; 0: they repeat nothing."""
    is_more_better: bool = True
    floor_rows: int = 0
    """Rows of the GEMM floor that bounds it; 0: none does."""

    def bench_flags(self, seed: int, folder: Path) -> list[str]:
        """Flags of a run; another seed has other prompts. `folder` is for files that they name."""
        if self.pattern_len:
            return [f"--dataset-path={self._write_prompts(seed, folder)}"]
        return [
            f"--num-prompts={self.num_prompts}",
            f"--max-concurrency={self.streams}",
            f"--random-input-len={self.input_len}",
            f"--random-output-len={self.output_len}",
            f"--random-prefix-len={self.prefix_len}",
            f"--seed={seed}",
        ]

    def prompts(self, seed: int) -> list[list[int]]:
        """As many as run at a time, as token ids, for libraries."""
        rng = random.Random(seed)

        def draw(length: int) -> list[int]:
            return [rng.randrange(FIRST_TOKEN_ID, END_TOKEN_ID) for _ in range(length)]

        if self.pattern_len:
            times = self.input_len // self.pattern_len
            return [draw(self.pattern_len) * times for _ in range(self.streams)]
        shared = draw(self.prefix_len)
        return [shared + draw(self.input_len) for _ in range(self.streams)]

    def _write_prompts(self, seed: int, folder: Path) -> Path:
        file = folder / "prompts.jsonl"
        lines = [{"prompt": ids, "max_tokens": self.output_len} for ids in self.prompts(seed)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return file

    def of_seconds(self, seconds: float) -> float:
        """The figure of a library that took so long for `prompts`."""
        num_output = self.streams * self.output_len
        figures = {
            "duration_s": seconds,
            "output_rate": num_output / seconds,
            "latencies_ms": {"ttft": {"percentiles": {"50.0": seconds * 1e3}}},
        }
        return self.figure(figures)

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times better ours is."""
        if not ours or not theirs:
            return math.nan
        return ours / theirs if self.is_more_better else theirs / ours

    def floor(self, seconds: float) -> float:
        """The figure of a server that does nothing but a step's products."""
        return self.input_len / seconds if self.output_len == 1 else self.streams / seconds


def _output_rate(report: Report) -> float:
    return float(report["output_rate"])


def _duration(report: Report) -> float:
    return float(report["duration_s"])


def _gap(report: Report) -> float:
    return float(report["latencies_ms"]["itl"]["percentiles"]["50.0"])


def _prefill_rate(report: Report) -> float:
    return 1024 * 1e3 / float(report["latencies_ms"]["ttft"]["percentiles"]["50.0"])


SERVING: Sequence[Workload] = (
    Workload("1 stream", "tok/s", 1, 1, 128, 128, _output_rate, floor_rows=1),
    Workload("1 stream, copies", "tok/s", 1, 1, 128, 128, _output_rate, pattern_len=32),
    Workload("8 streams", "tok/s", 8, 8, 128, 64, _output_rate, floor_rows=8),
    Workload("32 streams", "tok/s", 32, 32, 128, 64, _output_rate, floor_rows=32),
    Workload("64 streams", "tok/s", 64, 64, 128, 64, _output_rate, floor_rows=64),
    Workload("prefill of 1,024", "prompt tok/s", 1, 2, 1024, 1, _prefill_rate, floor_rows=1024),
    Workload(
        "32 x (512 shared + 32)",
        "s",
        32,
        32,
        32,
        32,
        _duration,
        prefix_len=512,
        is_more_better=False,
    ),
)

CONTROL_PLANE: Sequence[Workload] = (
    Workload("1 stream", "tok/s", 1, 1, 32, 512, _output_rate),
    Workload("1 stream, between tokens", "ms", 1, 1, 32, 512, _gap, is_more_better=False),
    Workload("64 streams", "tok/s", 64, 64, 32, 128, _output_rate),
    Workload("256 streams", "tok/s", 256, 256, 32, 128, _output_rate),
)
