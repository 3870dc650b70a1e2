"""Time of the sampler alone, here and in another checkout, run by run side by side.

    git worktree add --detach /tmp/before COMMIT
    python benchmarks/sampler.py --before /tmp/before --output benchmarks/results/NAME.json

Each checkout samples in a process of its own; the two take turns, a measured call each, so that a
machine that slows down slows both. Logits have the shape of a language model's: a few likely
tokens far above a vocabulary of unlikely ones; `flat` is a temperature at which hundreds are in
play. Medians tell of the machine as it was, with whatever else ran on it; minima of the code. The
state of requests is made once, as in a worker.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagewire.kit.machine import describe_machine

VOCAB_SIZE = 49_152
NUM_ROWS = (1, 8, 32, 128)
PROMPT = [(7 * i) % 40_000 for i in range(500)]
OUTPUT = [(11 * i) % 300 for i in range(200)]
TOP_P = {"top_p": 0.9, "temperature": 0.8}
PENALTIES = {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5}
CASES: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "temperature": [{"temperature": 0.8}],
    "top_p": [TOP_P],
    "top_p, flat": [{"top_p": 0.95, "temperature": 2.0}],
    "top_k": [{"top_k": 50}],
    "penalties": [PENALTIES],
    "logprobs": [{"temperature": 0.0, "logprobs": 5}],
    "mixed": [
        {"temperature": 0.0},
        TOP_P,
        PENALTIES,
        {"top_k": 40, "min_p": 0.02, "presence_penalty": 0.5},
        {"temperature": 1.0, "logprobs": 3, "min_tokens": 500, "stop_token_ids": (9,)},
        {"temperature": 0.7, "logit_bias": ((5, 2.0), (77, -9.0))},
        {"temperature": 0.0},
        TOP_P,
    ],
}


def serve() -> None:
    """Answers each line `case rows` with the seconds of one call; runs in either checkout."""
    from worker_svc.torch_runtime import prepare_environment

    prepare_environment()
    import torch

    from worker_svc.sampler.sampler import Sampler

    calls: dict[tuple[str, int], Callable[[torch.Tensor], object]] = {}
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(max(NUM_ROWS), VOCAB_SIZE, generator=generator) * 1.5
    likely = torch.randint(VOCAB_SIZE, (max(NUM_ROWS), 40), generator=generator)
    logits.scatter_(1, likely, 14 + 3 * torch.randn(likely.shape, generator=generator))
    sampler = Sampler(eos_token_ids=(2,))
    for line in sys.stdin:
        name, num_rows = line.rsplit(maxsplit=1)
        key = name, int(num_rows)
        if key not in calls:
            calls[key] = _prepare(sampler, CASES[name], int(num_rows))
        values = logits[: int(num_rows)].clone()
        with torch.inference_mode():
            begin = time.perf_counter()
            calls[key](values)
            seconds = time.perf_counter() - begin
        print(seconds, flush=True)


def _prepare(sampler: Any, case: list[dict[str, Any]], num_rows: int) -> Callable[..., object]:
    """A call that samples for requests that are there already."""
    from pagewire.sampling_params import SamplingParams

    params = [SamplingParams(**case[i % len(case)]).normalized() for i in range(num_rows)]
    try:
        from worker_svc.sampler.table import SamplingTable
    except ImportError:
        return _prepare_rows(sampler, params)
    table = SamplingTable()
    slots = [table.add(one, seed, PROMPT, OUTPUT) for seed, one in enumerate(params)]
    return lambda logits: sampler.sample(logits, table.gather(slots))


def _prepare_rows(sampler: Any, params: list[Any]) -> Callable[..., object]:
    """The same for checkouts from before there was a sampling table."""
    import numpy as np

    from worker_svc.sampler import metadata
    from worker_svc.sampler.token_tables import TokenTables

    prompt, output = np.array(PROMPT, dtype=np.int32), np.array(OUTPUT, dtype=np.int32)
    made = [(one, TokenTables.from_params(one)) for one in params]
    sampling_row: Any = metadata.SamplingRow  # type: ignore[attr-defined]

    def call(logits: Any) -> object:
        rows = [
            sampling_row(one, tables, seed, prompt, output)
            for seed, (one, tables) in enumerate(made)
        ]
        return sampler.sample(logits, rows)

    return call


class Checkout:
    """The process that samples with one checkout's code."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, case: str, num_rows: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{case} {num_rows}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def compare(checkouts: dict[str, Checkout], repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for case in CASES:
        for num_rows in NUM_ROWS:
            times: dict[str, list[float]] = {name: [] for name in checkouts}
            for turn in range(repeats + 1):
                for name, checkout in checkouts.items():
                    seconds = checkout.seconds(case, num_rows)
                    if turn:  # the first call only warms up
                        times[name].append(seconds)
            figures = {}
            for name, taken in times.items():
                figures[f"{name}_median_ms"] = round(statistics.median(taken) * 1e3, 4)
                figures[f"{name}_min_ms"] = round(min(taken) * 1e3, 4)
            results[f"{case}, {num_rows} rows"] = figures
            print(f"{case}, {num_rows} rows: {figures}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="root of the checkout to compare with")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    checkouts = {"after": Checkout(Path(__file__).parents[1])}
    if args.before is not None:
        checkouts = {"before": Checkout(args.before), **checkouts}
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "python": platform.python_version(),
        "vocab_size": VOCAB_SIZE,
        "repeats": args.repeats,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "milliseconds": compare(checkouts, args.repeats),
    }
    if args.output is not None:
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for checkout in checkouts.values():
        checkout.process.terminate()
        checkout.process.wait()


if __name__ == "__main__":
    main()
