"""What the same numbers whatever the batch cost: time of a decode step, kind by kind in turns.

    python benchmarks/batch_invariance.py --output benchmarks/results/NAME.json

Each kind runs in a process of its own, since MKL reads its mode once; they take turns, a measured
step each, so that a machine that slows down slows all. `free` lets MKL choose its kernels and pads
no rows; `float32` is what a worker does without the flag; `batch_invariant` with it. The ratios are
of medians, to `free`. A row is a request with `--context` tokens in the cache.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagewire.kit.machine import describe_machine

KINDS = ("free", "float32", "batch_invariant")
NUM_ROWS = (1, 8, 32)
BLOCK_SIZE = 16


def serve(options: argparse.Namespace) -> None:
    """Answers each line, a number of rows, with the seconds of one step."""
    from worker_svc.torch_runtime import prepare_environment

    prepare_environment()
    from pagewire.engine_config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
    from worker_svc.model_runner import ModelRunner

    model = ModelConfig(
        model=options.model, dtype="float32", batch_invariant=options.serve == "batch_invariant"
    )
    runner: Any = ModelRunner(
        EngineConfig(
            model=model,
            cache=CacheConfig(kv_cache_memory_bytes=2**30),
            device=DeviceConfig(num_threads=options.threads),
        )
    )
    runner.load(lambda stage, fraction: None)
    if options.serve == "free":
        runner._loaded.min_rows = 1
    print("ready", flush=True)
    for line in sys.stdin:
        print(decode_seconds(runner, int(line), options.context), flush=True)


def decode_seconds(runner: Any, num_rows: int, context: int) -> float:
    """One step of `num_rows` requests, each with a token to compute."""
    from pagewire.sampling_params import SamplingParams
    from worker_svc.step import NewRequest, SchedulerOutput

    num_blocks = -(-(context + 1) // BLOCK_SIZE)
    runner.allocate_kv_cache(1 + num_rows * num_blocks, BLOCK_SIZE)
    rows = [
        NewRequest(
            handle=row,
            request_id=f"r{row}",
            prompt_token_ids=[(7 * i + row) % 40_000 for i in range(context + 1)],
            output_token_ids=[],
            sampling=SamplingParams(temperature=0.0),
            num_computed_tokens=context,
            block_ids=range(1 + row * num_blocks, 1 + (row + 1) * num_blocks),
        )
        for row in range(num_rows)
    ]
    step = SchedulerOutput(
        step=1,
        new_requests=rows,
        handles=range(num_rows),
        num_scheduled_tokens=[1] * num_rows,
    )
    begin = time.perf_counter()
    runner.execute(step)
    return time.perf_counter() - begin


class Kind:
    """The process that computes one kind of steps."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        env = dict(os.environ)
        if name == "free":
            env["MKL_CBWR"] = "AUTO"
        self.process = subprocess.Popen(
            [sys.executable, __file__, *argv, "--serve", name],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self, num_rows: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{num_rows}\n")
        self.process.stdin.flush()
        return float(self.read())

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def compare(kinds: dict[str, Kind], repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for num_rows in NUM_ROWS:
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(repeats + 1):
            for name, kind in kinds.items():
                seconds = kind.seconds(num_rows)
                if turn:  # the first one only warms up
                    times[name].append(seconds)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        figures = {f"{name}_median_ms": round(1e3 * medians[name], 2) for name in kinds}
        figures |= {f"{name}_min_ms": round(1e3 * min(times[name]), 2) for name in kinds}
        figures |= {
            f"{name}_ratio": round(medians[name] / medians["free"], 3)
            for name in kinds
            if name != "free"
        }
        results[f"{num_rows} rows"] = figures
        print(f"{num_rows} rows: {figures}", file=sys.stderr, flush=True)
    return results


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=200, help="tokens")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    if options.serve:
        serve(options)
        return
    kinds = {name: Kind(name, sys.argv[1:]) for name in KINDS}
    try:
        for kind in kinds.values():
            if kind.read() != "ready\n":
                raise SystemExit("a kind did not load: its error is above")
        steps = compare(kinds, options.repeats)
    finally:
        for kind in kinds.values():
            kind.end()
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "options": {
            "model": options.model,
            "threads": options.threads,
            "context": options.context,
            "repeats": options.repeats,
        },
        "steps": steps,
    }
    text = json.dumps(report, indent=1)
    if options.output is not None:
        options.output.write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
