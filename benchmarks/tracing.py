"""What it costs to keep traces of requests.

    python benchmarks/tracing.py --streams 64 --output benchmarks/results/tracing-DATE.json

Two stacks with the simulated worker, with traces and without, take turns: the ratio of CPU time a
token is the figure to look at, as tokens/s of a machine that others use too say little. Measures
are those of `control_plane`. Besides, what the bookkeeping alone takes, in one thread: a frame and
a token of each of so many streams.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

import uvloop
from control_plane import RunningStack, add_worker_flags, make_parser, run_all
from measured_stack import control_plane_flags, find_services, write_report

from gateway.trace.output_trace import UNTRACED, TracedOutput, UntracedOutput
from gateway.trace.step_ledger import NO_LEDGER, StepLedger
from pagewire.cli.own_stack import start_own_stack
from pagewire.v1 import scheduler_pb2

# The first one is what ratios are taken to.
STACKS = {"off": "--trace-requests=0", "on": "--trace-requests=256"}
NUM_FRAMES, ROUNDS = 2000, 9


def bookkeeping_ns(ledger: StepLedger, outputs: Sequence[UntracedOutput]) -> float:
    """CPU time of the gateway's bookkeeping for one token, in nanoseconds."""
    timings = scheduler_pb2.StepTimings(
        schedule_ns=10**6, execute_ns=9 * 10**6, forward_ns=6 * 10**6, busy_ns=8 * 10**6
    )
    rounds = []
    for _ in range(ROUNDS):
        begin_ns = time.thread_time_ns()
        for _ in range(NUM_FRAMES):
            moment = ledger.take(timings)
            for output in outputs:
                output.advanced(moment, 1)
        rounds.append((time.thread_time_ns() - begin_ns) / NUM_FRAMES / len(outputs))
    return round(statistics.median(rounds), 1)


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    parser = make_parser(__doc__)
    add_worker_flags(parser)
    options = parser.parse_args(argv)
    flags = control_plane_flags(options)
    bookkeeping = {
        f"{num_streams} streams": {
            "on": bookkeeping_ns(StepLedger(), [TracedOutput() for _ in range(num_streams)]),
            "off": bookkeeping_ns(NO_LEDGER, [UNTRACED] * num_streams),
        }
        for num_streams in (1, 8, 64, 256)
    }
    print("bookkeeping, ns of CPU a token", json.dumps(bookkeeping), flush=True)
    with ExitStack() as running:
        stacks = []
        for name, flag in STACKS.items():
            stack = running.enter_context(start_own_stack([*flags, flag]))
            stacks.append(RunningStack(name, stack, find_services(stack)))
        results = uvloop.run(run_all(stacks, options))
    return write_report(options, bookkeeping_ns_per_token=bookkeeping, results=results)


if __name__ == "__main__":
    main()
