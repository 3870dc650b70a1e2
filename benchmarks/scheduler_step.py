"""The scheduler's own time of one step, and how it grows with requests, queue and pool.

    python benchmarks/scheduler_step.py
    python benchmarks/scheduler_step.py --rounds 5 --peer "PYTHON vllm_scheduler_step.py MODEL"

A figure is the median over steps of `schedule` plus `update_from_output`, with prefix caching on
and blocks of 16 tokens; what the worker would do in between is not timed. `decode`: every running
request draws one token. `churn`: in every step some requests end and as many are admitted with a
new prompt, so that queue, pool and hash map are at work. A peer prints lines `RESULT n N schedule
ms X update ms Y min X Y`; it runs between our rounds, so that both see the same state of the
machine. Minima are shown too, and our CPU time: others' load lengthens medians.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pagewire import __version__
from pagewire.kit.machine import describe_machine
from pagewire.sampling_params import SamplingParams
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.output import ModelRunnerOutput
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import Scheduler

RESULTS = Path(__file__).parent / "results"
BLOCK_SIZE = 16
VOCAB_SIZE = 40_000
PEER_LINE = re.compile(
    r"RESULT n (\d+) schedule ms ([\d.]+) update ms ([\d.]+) +min ([\d.]+) ([\d.]+)"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One measured step, in seconds."""

    schedule_s: float
    update_s: float
    cpu_s: float
    """Of both, on this thread: what others on the machine do does not count."""
    num_tokens: int
    num_finished: int


class Engine:
    """A scheduler, and prompts of random tokens for it."""

    def __init__(self, *, max_num_seqs: int, num_blocks: int, max_num_queued: int = 2048) -> None:
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_model_len=4096,
                max_num_batched_tokens=8192,
                max_num_seqs=max_num_seqs,
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                vocab_size=VOCAB_SIZE,
                max_num_queued_requests=max_num_queued,
                max_num_queued_tokens=2**40,
            )
        )
        self._rng = random.Random(0)
        self._ids = count()

    def add(self, prompt_len: int, max_tokens: int) -> None:
        prompt = self._rng.choices(range(10, VOCAB_SIZE), k=prompt_len)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add_request(
            EngineCoreRequest(str(next(self._ids)), prompt, params, arrival_time_s=0.0), 0.0
        )

    def step(self) -> Step:
        """Run one step."""
        cpu_start, start = time.thread_time(), time.perf_counter()
        output = self.scheduler.schedule(0.0)
        scheduled, cpu_scheduled = time.perf_counter(), time.thread_time()
        choose = self._rng.randrange
        result = ModelRunnerOutput(
            output.step,
            [[choose(10, VOCAB_SIZE)] if draws else [] for draws in output.draws],
        )
        cpu_sampled, sampled = time.thread_time(), time.perf_counter()
        outputs = self.scheduler.update_from_output(output, result)
        done, cpu_done = time.perf_counter(), time.thread_time()
        return Step(
            scheduled - start,
            done - sampled,
            cpu_scheduled - cpu_start + cpu_done - cpu_sampled,
            output.total_num_scheduled_tokens,
            sum(len(client.finished) for client in outputs.values()),
        )


def time_decode(num_running: int, *, num_waiting: int = 0, num_steps: int = 150) -> dict[str, Any]:
    """Time steps in which nothing but decoding happens; others may wait meanwhile."""
    engine = Engine(
        max_num_seqs=num_running, num_blocks=100_000, max_num_queued=num_running + num_waiting + 1
    )
    for _ in range(num_running):
        engine.add(200, 512)
    steps: list[Step] = []
    is_filled = False
    while len(steps) < num_steps:
        step = engine.step()
        if step.num_tokens != num_running:
            continue
        if not is_filled:
            is_filled = True
            for _ in range(num_waiting):
                engine.add(32, 64)
        steps.append(step)
    return summary(steps)


def time_churn(
    num_running: int,
    *,
    num_waiting: int,
    num_blocks: int = 100_000,
    prompt_len: int = 200,
    num_steps: int = 150,
) -> dict[str, Any]:
    """Time steps in which requests of 64 output tokens end and others take their place."""
    engine = Engine(
        max_num_seqs=num_running,
        num_blocks=num_blocks,
        max_num_queued=num_running + num_waiting + 1,
    )
    # Staggered, so that each step has its share of ends.
    for index in range(num_running):
        engine.add(prompt_len, 1 + index % 64)
    for _ in range(num_waiting):
        engine.add(prompt_len, 64)
    steps: list[Step] = []
    for number in range(64 + num_steps):
        step = engine.step()
        for _ in range(step.num_finished):
            engine.add(prompt_len, 64)
        if number >= 64:
            steps.append(step)
    return summary(steps)


def summary(steps: Sequence[Step]) -> dict[str, Any]:
    total_s = [step.schedule_s + step.update_s for step in steps]
    return {
        "schedule_ms": round(1e3 * statistics.median(step.schedule_s for step in steps), 4),
        "update_ms": round(1e3 * statistics.median(step.update_s for step in steps), 4),
        "cpu_ms": round(1e3 * statistics.median(step.cpu_s for step in steps), 4),
        "total_ms": round(1e3 * statistics.median(total_s), 4),
        "min_total_ms": round(1e3 * min(total_s), 4),
    }


def cases(options: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for running in (16, 256, 1024):
        found[f"decode, {running} running"] = partial(time_decode, running)
    for waiting in (10, 1_000, options.max_waiting):
        suffix = f"256 running, {waiting} waiting"
        found[f"decode, {suffix}"] = partial(time_decode, 256, num_waiting=waiting)
        found[f"churn, {suffix}"] = partial(time_churn, 256, num_waiting=waiting)
    for blocks in (1_000, 30_000, options.max_blocks):
        found[f"churn, 64 running, {blocks} blocks"] = partial(
            time_churn, 64, num_waiting=64, num_blocks=blocks, prompt_len=64
        )
    return found


def run_peer(command: str) -> dict[str, dict[str, Any]]:
    """Run a peer's script and read its result lines."""
    done = subprocess.run(
        shlex.split(command), capture_output=True, text=True, check=False, timeout=900
    )
    lines = PEER_LINE.findall(done.stdout)
    if not lines:
        raise SystemExit(
            f"error: the peer printed no result (exit {done.returncode}): {done.stderr[-500:]}"
        )
    return {
        f"decode, {running} running": {
            "schedule_ms": float(schedule),
            "update_ms": float(update),
            "total_ms": round(float(schedule) + float(update), 4),
            "min_total_ms": round(float(min_schedule) + float(min_update), 4),
        }
        for running, schedule, update, min_schedule, min_update in lines
    }


def over_rounds(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By case: the median of the rounds' medians, and the least of their minima."""
    return {
        case: {
            "median_ms": round(statistics.median(r[case]["total_ms"] for r in rounds), 4),
            "min_ms": min(r[case]["min_total_ms"] for r in rounds),
        }
        | (
            {"median_cpu_ms": round(statistics.median(r[case]["cpu_ms"] for r in rounds), 4)}
            if "cpu_ms" in rounds[0][case]
            else {}
        )
        for case in rounds[0]
    }


def probe_ms() -> float:
    """Time of a fixed piece of Python: the state of the machine beside a round."""
    start = time.perf_counter()
    sum(map(hash, map(str, range(200_000))))
    return round(1e3 * (time.perf_counter() - start), 2)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured")
    parser.add_argument("--peer", help="command of a peer's script, run after each of our rounds")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--max-waiting", type=int, default=100_000)
    parser.add_argument("--max-blocks", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="JSON file; default: one by date in results/")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    ours: list[dict[str, dict[str, Any]]] = []
    peers: list[dict[str, dict[str, Any]]] = []
    probes: list[float] = []
    loads: list[float] = []
    for _ in range(options.rounds):
        probes.append(probe_ms())
        loads.append(round(os.getloadavg()[0], 2))
        figures = {}
        for name, measure in cases(options).items():
            if options.only in name:
                figures[name] = measure()
                gc.collect()
        ours.append(figures)
        if options.peer:
            peers.append(run_peer(options.peer))
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "python": platform.python_version(),
        "pagewire": __version__,
        "probe_ms": probes,
        "load_average": loads,
        "total": over_rounds(ours),
        "rounds": ours,
    }
    if peers:
        result["peer_rounds"] = peers
        result["peer_total"] = over_rounds(peers)
        result["peer_ratio"] = {
            case: {
                name: round(value / result["total"][case][name], 2) for name, value in of.items()
            }
            for case, of in result["peer_total"].items()
            if case in result["total"]
        }
    print(json.dumps({k: v for k, v in result.items() if "rounds" not in k}, indent=2))
    day = result["date"][:10]
    out = options.out or RESULTS / f"scheduler_step-{day}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
