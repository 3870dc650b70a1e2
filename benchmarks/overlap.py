"""What asynchronous scheduling gains: the same load with and without it, in turns.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --device cpu --dtype float32 --output-len 32 --rounds 3

The engine's loop runs in this process and the worker in another one, over the real wire; gateway
and tokenizer are not there. All streams start at once with new random prompts and run past
end-of-sequence. A round is one run of each kind, in alternating order; ratios are taken within a
round, because the machine's state changes between rounds: a probe, a fixed piece of Python, stands
beside each run. `idle_share` is the worker's time without a queued step over the run's time.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scheduler_step import probe_ms

from pagewire import __version__
from pagewire.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagewire.kit.errors import PagewireError
from pagewire.kit.lifecycle import child_environment
from pagewire.kit.logs import configure_logging
from pagewire.kit.machine import describe_machine
from pagewire.kit.server import run
from pagewire.sampling_params import SamplingParams
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.worker_client import GrpcExecutor

RESULTS = Path(__file__).parent / "results"
FIRST_TOKEN_ID, END_TOKEN_ID = 1000, 40_000


class Client:
    """Waits for a number of requests to end."""

    def __init__(self, num_requests: int) -> None:
        self.num_tokens = 0
        self.num_left = num_requests
        self.done = asyncio.Event()

    def put_outputs(self, outputs: EngineCoreOutputs, timings: StepTimings) -> None:
        self.num_tokens += sum(map(len, outputs.new_token_ids))
        self.put_finished(outputs.finished)

    def put_finished(self, finished: Sequence[FinishedRequest]) -> None:
        self.num_left -= len(finished)
        if self.num_left == 0:
            self.done.set()

    def put_suspicions(self, counts: Mapping[str, int]) -> None:
        return

    def set_recovering(self, recovering: bool) -> None:
        return

    def set_draining(self, deadline_s: float) -> None:
        return

    def end(self, error: PagewireError) -> None:
        return


def make_config(options: argparse.Namespace, *, async_scheduling: bool) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=options.model, dtype=options.dtype, max_model_len=2048),
        cache=CacheConfig(kv_cache_memory_bytes=2**30),
        scheduler=SchedulerConfig(async_scheduling=async_scheduling),
        device=DeviceConfig(
            device=options.device,
            sim_step_time_us=options.step_time_us,
            num_threads=options.threads,
        ),
    )


@contextmanager
def worker() -> Iterator[str]:
    """A worker process; gives its address."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        address = f"unix:{folder}/w"
        flags = [f"--listen={address}", f"--admin-listen={address}.admin", "--metrics-port=0"]
        argv = [sys.executable, "-m", "worker_svc", "--log-level=warning", *flags]
        with subprocess.Popen(argv, env=child_environment()) as process:
            try:
                yield address
            finally:
                process.terminate()


async def measure(
    config: EngineConfig, address: str, prompts: Sequence[Sequence[int]], output_len: int
) -> dict[str, float]:
    """Claim the worker, run all prompts together, give the worker back."""
    executor = GrpcExecutor(config, [address], "benchmark", random.getrandbits(63))
    core = EngineCore(config, executor)
    ready = asyncio.Event()
    core.on_state = lambda state: ready.set() if state is EngineState.READY else None
    task = asyncio.create_task(core.run())
    try:
        await ready.wait()
        probed_ms = probe_ms()  # nothing runs yet
        client = Client(len(prompts))
        client_id = core.attach(client)
        started_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
            core.add_request(
                EngineCoreRequest(f"r{number}", prompt, params, time.time(), client_id)
            )
        await client.done.wait()
        wall_s = time.perf_counter() - started_s
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await executor.close()
    return {
        "tokens_per_s": round(client.num_tokens / wall_s, 1),
        "steps_per_s": round(core.counters.num_steps / wall_s, 1),
        "idle_share": round(core.counters.worker_idle_ns / 1e9 / wall_s, 4),
        "probe_ms": probed_ms,
    }


async def run_rounds(
    options: argparse.Namespace, address: str
) -> list[dict[str, dict[str, float]]]:
    rng = random.Random(options.seed)
    rounds = []
    for number in range(-1, options.rounds):  # the first one warms up
        kinds = [True, False] if number % 2 else [False, True]
        result = {}
        for async_scheduling in kinds:
            prompts = [
                [rng.randrange(FIRST_TOKEN_ID, END_TOKEN_ID) for _ in range(options.prompt_len)]
                for _ in range(options.streams)
            ]
            config = make_config(options, async_scheduling=async_scheduling)
            name = "overlap" if async_scheduling else "no_overlap"
            result[name] = await measure(config, address, prompts, options.output_len)
        if number >= 0:
            rounds.append(result)
            print(json.dumps(result), file=sys.stderr)
    return rounds


def summary(
    rounds: Sequence[dict[str, dict[str, float]]], options: argparse.Namespace
) -> dict[str, object]:
    def median(kind: str, figure: str) -> float:
        return round(statistics.median(result[kind][figure] for result in rounds), 4)

    ratios = sorted(r["overlap"]["tokens_per_s"] / r["no_overlap"]["tokens_per_s"] for r in rounds)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "pagewire": __version__,
        "options": vars(options),
        "tokens_per_s_ratio": {
            "median": round(statistics.median(ratios), 3),
            "min": round(ratios[0], 3),
            "max": round(ratios[-1], 3),
        },
        "medians": {
            kind: {
                figure: median(kind, figure)
                for figure in ("tokens_per_s", "steps_per_s", "idle_share", "probe_ms")
            }
            for kind in ("overlap", "no_overlap")
        },
        "rounds": rounds,
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="sim", choices=["sim", "cpu"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, help="of the worker, with --device cpu")
    parser.add_argument("--step-time-us", type=int, default=2000, help="with --device sim")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-len", type=int, default=32, help="tokens")
    parser.add_argument("--output-len", type=int, default=500, help="tokens")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--name", help="of the file in benchmarks/results; without it: none")
    return parser.parse_args(argv)


async def compare(options: argparse.Namespace) -> int:
    configure_logging("benchmark", "error")
    with worker() as address:
        rounds = await run_rounds(options, address)
    text = json.dumps(summary(rounds, options), indent=2)
    if options.name:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{options.name}.json").write_text(f"{text}\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run(lambda: compare(parse())))
