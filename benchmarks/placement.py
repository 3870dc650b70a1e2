"""How the four processes share few cores: threads of the worker, and how they wait, in turns.

    python benchmarks/placement.py --streams 1,8,32 --output benchmarks/results/placement-DATE.json
    python benchmarks/placement.py --dtype float32 --streams 1,32

Stacks with the same model and different placements run at the same time and take turns; ratios are
to the default. Measures are those of `control_plane`. How OpenMP waits matters where PyTorch runs
the model (`--dtype float32`): the kernels for packed weights have threads of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import uvloop
from control_plane import RunningStack, make_parser, run_all
from measured_stack import find_services, model_flags, write_report

from pagewire.cli.own_stack import start_own_stack

ONE_THREAD = "--num-threads=1"

Placement = tuple[Sequence[str], Mapping[str, str]]
"""Flags and environment."""

# The first one is what ratios are taken to.
OF_KERNELS: Mapping[str, Placement] = {"default": ((), {}), "1 thread": ((ONE_THREAD,), {})}
OF_PYTORCH: Mapping[str, Placement] = {
    **OF_KERNELS,
    "OpenMP passive": ((), {"OMP_WAIT_POLICY": "PASSIVE"}),
    "OpenMP spins briefly": ((), {"GOMP_SPINCOUNT": "2000"}),
}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="auto", help="auto: packed weights and our kernels")
    parser.set_defaults(streams="1,8,32", output_len=64, protocols="http")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    options = parse_args(argv)
    placements = OF_KERNELS if options.dtype == "auto" else OF_PYTORCH
    with ExitStack() as running:
        stacks = []
        for name, (flags, environment) in placements.items():
            common = [*model_flags(options.model), f"--dtype={options.dtype}", "--device=cpu"]
            stack = running.enter_context(start_own_stack([*common, *flags], environment))
            stacks.append(RunningStack(name, stack, find_services(stack)))
        results = uvloop.run(run_all(stacks, options))
    return write_report(options, results=results)


if __name__ == "__main__":
    main()
