"""CPU time a token of each service, and tokens/s, with a worker that computes next to nothing.

    python benchmarks/control_plane.py --output benchmarks/results/control_plane-DATE.json
    python benchmarks/control_plane.py --tree /tmp/before --tree . --rounds 5

With several trees (checkouts of this repository) a stack of each runs, and their measures take
turns, so that their ratio survives a machine that changes its speed; the client is this tree's.
CPU time is read from /proc before and after each measure, admission and prefill included. With a
step time of zero the scheduler is faster than any client, so outputs merge; a step time at which
the services keep up (messages a token near 1) tells what one message a token costs. `probe_us` is
the CPU time of a fixed loop in the same moment: a token costs more on a machine that is shared.

With the model of `benchmarks.tiny_llama` and `--device cpu` the worker runs real steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from measured_stack import (
    MAX_MODEL_LEN,
    TIMEOUT_S,
    completions_target,
    control_plane_flags,
    find_services,
    when_and_where,
)

from pagewire.cli.bench.driver import Driver
from pagewire.cli.bench.grpc_target import GrpcTarget
from pagewire.cli.bench.record import Target
from pagewire.cli.bench.workload import RandomWorkload
from pagewire.cli.own_stack import OwnStack, start_own_stack
from pagewire.kit.completion_wakeups import cheapen_wakeups

BLOCK_SIZE = 16
"""Tokens of a block of the KV cache."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What one load showed."""

    tokens_per_s: float
    messages_per_token: float
    cpu_us_per_token: dict[str, float]
    """By service, and `all`: without the worker, which computes nothing here."""
    itl_p50_ms: float
    probe_us: float


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack, and the processes of its services."""

    name: str
    stack: OwnStack
    pids: dict[str, int]


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all its threads."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def probe_us() -> float:
    """CPU time of a fixed piece of Python; the best of a few."""
    times = []
    for _ in range(5):
        before = time.process_time_ns()
        sum(i * i for i in range(20_000))
        times.append(time.process_time_ns() - before)
    return min(times) / 1e3


def make_target(stack: OwnStack, protocol: str) -> Target:
    if protocol == "grpc":
        return GrpcTarget(stack.target, "", ignore_eos=True, api_key=None, timeout_s=TIMEOUT_S)
    return completions_target(stack)


async def measure(
    running: RunningStack, protocol: str, num_streams: int, seed: int, options: argparse.Namespace
) -> Measure:
    """Run `num_streams` requests at once and read what they cost."""
    output_len = options.output_len if num_streams > 1 else options.output_len * 4
    workload = RandomWorkload(
        num_streams, options.prompt_len, output_len, as_text=options.text_prompts
    )
    jobs = workload.jobs(itertools.repeat(0.0), random.Random(seed))
    target = make_target(running.stack, protocol)
    try:
        before = {name: cpu_s(pid) for name, pid in running.pids.items()}
        records, wall_s = await Driver(target).run(jobs)
        after = {name: cpu_s(pid) for name, pid in running.pids.items()}
    finally:
        await target.close()
    if failed := [record.error for record in records if record.error]:
        raise SystemExit(f"error: {len(failed)} requests failed: {failed[0]}")
    num_tokens = sum(record.num_output_tokens for record in records)
    cost = {name: 1e6 * (after[name] - before[name]) / num_tokens for name in running.pids}
    cost["all"] = sum(cost[name] for name in cost if name != "worker")
    gaps = [
        later - earlier
        for record in records
        for earlier, later in zip(record.arrivals_s, record.arrivals_s[1:], strict=False)
    ]
    return Measure(
        tokens_per_s=round(num_tokens / wall_s, 1),
        messages_per_token=round(sum(len(r.arrivals_s) for r in records) / num_tokens, 3),
        cpu_us_per_token={name: round(value, 2) for name, value in cost.items()},
        itl_p50_ms=round(1e3 * statistics.median(gaps), 3) if gaps else 0.0,
        probe_us=round(probe_us(), 1),
    )


def median_of(measures: Sequence[Measure]) -> Measure:
    """Return the median of each figure."""
    names = measures[0].cpu_us_per_token
    return Measure(
        tokens_per_s=statistics.median(m.tokens_per_s for m in measures),
        messages_per_token=statistics.median(m.messages_per_token for m in measures),
        cpu_us_per_token={
            name: statistics.median(m.cpu_us_per_token[name] for m in measures) for name in names
        },
        itl_p50_ms=statistics.median(m.itl_p50_ms for m in measures),
        probe_us=statistics.median(m.probe_us for m in measures),
    )


def ratios(rounds: dict[str, list[Measure]]) -> dict[str, dict[str, float]]:
    """Return each tree's figures over those of the first one: medians of the rounds' ratios."""
    first, *others = rounds
    result = {}
    for name in others:
        pairs = list(zip(rounds[name], rounds[first], strict=True))
        result[f"{name} / {first}"] = {
            "tokens_per_s": _median_ratio([(a.tokens_per_s, b.tokens_per_s) for a, b in pairs]),
            **{
                f"cpu_{service}": _median_ratio(
                    [(a.cpu_us_per_token[service], b.cpu_us_per_token[service]) for a, b in pairs]
                )
                for service in pairs[0][0].cpu_us_per_token
                if service in pairs[0][1].cpu_us_per_token
            },
        }
    return result


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return round(statistics.median(a / b for a, b in pairs if b), 3)


async def run_all(stacks: Sequence[RunningStack], options: argparse.Namespace) -> dict[str, object]:
    results = {}
    for protocol in options.protocols.split(","):
        for num_streams in map(int, options.streams.split(",")):
            rounds: dict[str, list[Measure]] = {running.name: [] for running in stacks}
            for number in range(-1, options.rounds):  # the first one warms up
                for running in stacks:
                    seed = options.seed + 1000 * num_streams + number
                    found = await measure(running, protocol, num_streams, seed, options)
                    if number >= 0:
                        rounds[running.name].append(found)
            key = f"{protocol}, {num_streams} streams"
            results[key] = {
                **{name: asdict(median_of(found)) for name, found in rounds.items()},
                "ratios": ratios(rounds),
            }
            print(key, json.dumps(results[key]), flush=True)
    return results


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return the flags of a benchmark that measures stacks as here, with a text's first line."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--streams", default="1,64,256,1024")
    parser.add_argument("--prompt-len", type=int, default=32, help="tokens")
    parser.add_argument("--output-len", type=int, default=128, help="tokens; 4 x for one stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--output", type=Path, help="file for the figures")
    parser.set_defaults(text_prompts=False)
    return parser


def add_worker_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of stacks whose worker computes next to nothing, and how they are asked."""
    parser.add_argument("--protocols", default="grpc,http")
    parser.add_argument("--step-time-us", type=int, default=0)
    parser.add_argument("--device", default="sim")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_worker_flags(parser)
    parser.add_argument("--tree", type=Path, action="append", help="checkout; default: this one")
    return parser.parse_args(argv)


def num_blocks(options: argparse.Namespace) -> int:
    """Blocks in which no request is preempted, whose tokens would be computed twice.

    At least those of one request of the longest length, which a scheduler insists on.
    """
    of_stream = (options.prompt_len + options.output_len) // BLOCK_SIZE + 2
    # One stream has outputs that are longer, and a pool to itself.
    num_streams = max(4, *map(int, options.streams.split(",")))
    return max(of_stream * num_streams, MAX_MODEL_LEN // BLOCK_SIZE + 1)


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    options = parse_args(argv)
    cheapen_wakeups()  # the client shares the machine with what it measures
    trees = [tree.resolve() for tree in options.tree or [Path(__file__).parents[1]]]
    output = options.output.resolve() if options.output else None
    if Path(options.model).is_dir():
        options.model = Path(options.model).resolve()
    flags = control_plane_flags(options)
    if options.device == "sim":  # elsewhere blocks are memory, and the default is enough
        flags.append(f"--num-gpu-blocks-override={num_blocks(options)}")
    # `python -m` looks into the working directory first: it must be none of the trees.
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        os.chdir(folder)
        stacks = []
        for tree in trees:
            stack = running.enter_context(start_own_stack(flags, {"PYTHONPATH": str(tree)}))
            stacks.append(RunningStack(tree.name, stack, find_services(stack)))
        results = uvloop.run(run_all(stacks, options))
        os.chdir("/")
    report = {
        **when_and_where(),
        # Without folders of this machine: results have the trees' names.
        "options": {
            name: value.name if isinstance(value, Path) else str(value)
            for name, value in vars(options).items()
            if name not in ("output", "tree")
        },
        "results": results,
    }
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")
    return report


if __name__ == "__main__":
    main()
