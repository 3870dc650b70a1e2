"""What it costs to keep traces of requests: two stacks, with them and without, taking turns.

    python benchmarks/tracing.py --output benchmarks/results/tracing-DATE.json

The ratio of CPU time a token is the figure to look at: tokens/s of a machine that others use too
say little. Measures are those of `control_plane`, with the simulated worker.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from contextlib import ExitStack

import uvloop
from control_plane import RunningStack, find_services, parse_args, run_all

from pagewire import __version__
from pagewire.cli.own_stack import start_own_stack

# The first one is what ratios are taken to.
STACKS = {"off": "--trace-requests=0", "on": "--trace-requests=256"}


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    options = parse_args(argv)
    flags = [
        "--model=smollm2",
        "--device=sim",
        f"--sim-step-time-us={options.step_time_us}",
        f"--max-num-seqs={max(map(int, options.streams.split(',')))}",
        "--max-model-len=4096",
    ]
    with ExitStack() as running:
        stacks = []
        for name, flag in STACKS.items():
            stack = running.enter_context(start_own_stack([*flags, flag]))
            stacks.append(RunningStack(name, stack, find_services(stack)))
        results = uvloop.run(run_all(stacks, options))
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{options.machine}, {len(os.sched_getaffinity(0))} cores,"
        f" Linux {platform.release()}",
        "load_average": list(os.getloadavg()),
        "pagewire": __version__,
        "options": {name: str(value) for name, value in vars(options).items()},
        "results": results,
    }
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n")
    return report


if __name__ == "__main__":
    main()
