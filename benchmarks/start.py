"""Process start to the first token over HTTP, with cold and with warm caches, and what it took.

    python benchmarks/start.py --rounds 5 --output benchmarks/results/start-DATE.json

Cold: no byte code of any module, no converted tokenizer; the page cache of the kernel stays as it
is. Warm: what a first start has left. Both take turns. CPU seconds and memory (PSS) of each process
are read when the first token is there: on a shared machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import uvloop
from measured_stack import completions_target, find_services, model_flags, when_and_where

from pagewire.cli.bench.driver import Driver
from pagewire.cli.bench.record import Job
from pagewire.cli.own_stack import OwnStack, start_own_stack

PROMPT = "The capital of France is"


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a whole stack."""

    ready_s: float
    """Until `pagewire serve` says so."""
    first_token_s: float
    cpu_s: dict[str, float]
    """By service, `serve` for the supervisor; `all` for their sum."""
    pss_mib: dict[str, float]


def measure(flags: Sequence[str], caches: Path) -> Start:
    """Start a stack with these folders for its caches, ask for a token, and stop it."""
    environment = {
        "PYTHONPYCACHEPREFIX": str(caches / "byte-code"),
        # Where it is set, nothing would be warm: all modules are compiled at each start.
        "PYTHONDONTWRITEBYTECODE": "",
        "PAGEWIRE_CACHE_DIR": str(caches / "pagewire"),
    }
    started_s = time.perf_counter()
    with start_own_stack(flags, environment) as stack:
        ready_s = time.perf_counter() - started_s
        first_token_s = uvloop.run(first_token(stack)) - started_s
        processes = find_processes(stack)
        cpu_s = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        cpu_s["all"] = sum(cpu_s.values())
        pss = {name: process.memory_full_info().pss for name, process in processes.items()}
    pss["all"] = sum(pss.values())
    return Start(
        ready_s=round(ready_s, 3),
        first_token_s=round(first_token_s, 3),
        cpu_s={name: round(seconds, 2) for name, seconds in cpu_s.items()},
        pss_mib={name: round(num_bytes / 2**20, 1) for name, num_bytes in pss.items()},
    )


async def first_token(stack: OwnStack) -> float:
    """Return when the first output of a request came."""
    target = completions_target(stack)
    records, _ = await Driver(target).run([Job(PROMPT, 4)])
    if records[0].error:
        raise SystemExit(f"error: {records[0].error}")
    return records[0].arrivals_s[0]


def find_processes(stack: OwnStack) -> dict[str, psutil.Process]:
    """Return the processes of a stack by name."""
    pids = {"serve": stack.process.pid, **find_services(stack)}
    return {name: psutil.Process(pid) for name, pid in pids.items()}


def medians(starts: Sequence[Start]) -> dict[str, object]:
    return {
        "ready_s": statistics.median(start.ready_s for start in starts),
        "first_token_s": statistics.median(start.first_token_s for start in starts),
        "cpu_s": _median_by_name([start.cpu_s for start in starts]),
        "pss_mib": _median_by_name([start.pss_mib for start in starts]),
    }


def _median_by_name(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="file for the figures; default: print them")
    parser.add_argument("serve_flags", nargs="*", help="after --: flags of `pagewire serve`")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, object]:
    options = parse_args(argv)
    flags = [*model_flags(options.model), *options.serve_flags]
    starts: dict[str, list[Start]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        measure(flags, warm)
        for number in range(options.rounds):
            starts["cold"].append(measure(flags, Path(folder) / f"cold-{number}"))
            starts["warm"].append(measure(flags, warm))
    report: dict[str, object] = {
        **when_and_where(),
        "flags": flags,
        "medians": {name: medians(each) for name, each in starts.items()},
        "rounds": {name: [asdict(start) for start in each] for name, each in starts.items()},
    }
    text = json.dumps(report, indent=2) + "\n"
    if options.output is None:
        print(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return report


if __name__ == "__main__":
    main()
