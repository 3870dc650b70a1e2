"""Steps of the worker on a CPU: the kernels against PyTorch on the same model, side by side.

    python benchmarks/cpu_worker.py --output benchmarks/results/NAME.json
    python benchmarks/cpu_worker.py --backends cpu,cpu@../before    # two states of the sources

`BACKEND@FOLDER` runs the sources in another folder, whose kernels must be built there. Each backend
runs in a process of its own with the model loaded; they take turns, a measured run each, with a
probe of the machine's matrix products beside every round, so that a machine that slows down slows
all. Ratios are medians over rounds of the same round's times. No gateway and no scheduler: what is
measured is `ModelRunner.execute`, sampling (greedy) included. CPU seconds are those of the whole
process; on a machine that others use too they tell more than the clock.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STREAMS = (1, 8, 32, 64)
PROMPT_TOKENS = 128
PREFILL_TOKENS = 1024
BLOCK_SIZE = 16
PROBE_SIZE = 768


@dataclass(frozen=True)
class Timing:
    """One measured run."""

    tokens: int
    seconds: float
    cpu_seconds: float


class Streams:
    """Requests that decode side by side, for as long as they are asked to."""

    def __init__(self, runner: Any, num_streams: int, max_steps: int) -> None:
        self._runner = runner
        self._num_streams = num_streams
        self._step = 0
        self._width = -(-(PROMPT_TOKENS + max_steps) // BLOCK_SIZE)
        runner.allocate_kv_cache(1 + num_streams * self._width, BLOCK_SIZE)
        self._run(PROMPT_TOKENS, num_new=num_streams)

    def decode(self, num_steps: int) -> Timing:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            self._run(1)
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
        return Timing(num_steps * self._num_streams, seconds, cpu_seconds)

    def _run(self, num_tokens: int, num_new: int = 0) -> None:
        from worker_svc.step import SchedulerOutput

        self._step += 1
        self._runner.execute(
            SchedulerOutput(
                step=self._step,
                new_requests=[
                    new_request(handle, PROMPT_TOKENS, 1 + handle * self._width, self._width)
                    for handle in range(num_new)
                ],
                handles=range(self._num_streams),
                num_scheduled_tokens=[num_tokens] * self._num_streams,
            )
        )


def new_request(handle: int, num_tokens: int, first_block: int, num_blocks: int) -> Any:
    """A greedy request with a prompt of random tokens."""
    from pagewire.sampling_params import SamplingParams
    from worker_svc.step import NewRequest

    numbers = random.Random(handle)
    return NewRequest(
        handle=handle,
        request_id=f"stream-{handle}",
        prompt_token_ids=[numbers.randrange(100, 40_000) for _ in range(num_tokens)],
        output_token_ids=[],
        sampling=SamplingParams(temperature=0.0),
        num_computed_tokens=0,
        block_ids=range(first_block, first_block + num_blocks),
    )


def prefill(runner: Any) -> Timing:
    """One prompt in one step."""
    from worker_svc.step import SchedulerOutput

    num_blocks = PREFILL_TOKENS // BLOCK_SIZE + 1
    runner.allocate_kv_cache(1 + num_blocks, BLOCK_SIZE)
    step = SchedulerOutput(
        step=1,
        new_requests=[new_request(0, PREFILL_TOKENS, 1, num_blocks)],
        handles=[0],
        num_scheduled_tokens=[PREFILL_TOKENS],
    )
    begin, cpu_begin = time.perf_counter(), time.process_time()
    runner.execute(step)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    return Timing(PREFILL_TOKENS, seconds, cpu_seconds)


def probe() -> Timing:
    """A product of two float32 matrices; `tokens` are its multiplications in millions."""
    import torch

    matrix = torch.ones(PROBE_SIZE, PROBE_SIZE)
    begin, cpu_begin = time.perf_counter(), time.process_time()
    torch.mm(matrix, matrix)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    return Timing(PROBE_SIZE**3 // 10**6, seconds, cpu_seconds)


def serve(model: str, backend: str, num_threads: int, num_steps: int, rounds: int) -> None:
    """Answers each line (a number of streams, `prefill` or `probe`) with a timing."""
    from worker_svc.torch_runtime import prepare_environment

    prepare_environment()
    from pagewire.engine_config import (
        AttentionConfig,
        CacheConfig,
        DeviceConfig,
        EngineConfig,
        ModelConfig,
    )
    from worker_svc.model_runner import ModelRunner

    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=model),
            cache=CacheConfig(kv_cache_memory_bytes=2**30),
            attention=AttentionConfig(attention_backend=backend),  # type: ignore[arg-type]
            device=DeviceConfig(device="cpu", num_threads=num_threads),
        )
    )
    info = runner.load(lambda stage, fraction: None)
    print(json.dumps({"dtype": info.dtype, "weight_bytes": info.weight_bytes}), flush=True)
    current: tuple[str, Streams] | None = None
    for line in sys.stdin:
        workload = line.strip()
        if workload == "probe":
            timing = probe()
        elif workload == "prefill":
            current, timing = None, prefill(runner)
        else:
            if current is None or current[0] != workload:
                current = workload, Streams(runner, int(workload), num_steps * (rounds + 1))
                current[1].decode(1)
            timing = current[1].decode(num_steps)
        print(json.dumps(asdict(timing)), flush=True)


class Server:
    """A backend in a process of its own, `BACKEND` or `BACKEND@FOLDER`."""

    def __init__(self, backend: str, arguments: argparse.Namespace) -> None:
        name, _, folder = backend.partition("@")
        self.backend = f"{name}@{Path(folder).name}" if folder else name
        command = [sys.executable, __file__, "--serve", name, f"--model={arguments.model}"]
        for option in ("threads", "steps", "rounds"):
            command.append(f"--{option}={getattr(arguments, option)}")
        sources = Path(folder) if folder else Path(__file__).parents[1]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(sources.resolve())},
        )
        self.loaded = self._read()

    def run(self, workload: str) -> Timing:
        assert self._process.stdin is not None
        print(workload, file=self._process.stdin, flush=True)
        return Timing(**self._read())

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Logs go to the same place.
            if line.startswith('{"dtype"') or line.startswith('{"tokens"'):
                return json.loads(line)
        raise RuntimeError(f"the process of {self.backend} has ended")


def measure(servers: list[Server], workload: str, rounds: int) -> dict[str, Any]:
    """Rounds of one workload; each backend once a round, after a probe."""
    runs: dict[str, list[Timing]] = {server.backend: [] for server in servers}
    probes = []
    for _ in range(rounds):
        probes.append(servers[0].run("probe"))
        for server in servers:
            runs[server.backend].append(server.run(workload))
    first, *others = servers
    result: dict[str, Any] = {
        "workload": workload,
        "probe_gmac_per_cpu_second": [
            round(probe.tokens / 1e3 / max(probe.cpu_seconds, 1e-9), 1) for probe in probes
        ],
        "runs": {name: [asdict(run) for run in timings] for name, timings in runs.items()},
        "ratios": {},
    }
    for other in others:
        pairs = list(zip(runs[other.backend], runs[first.backend], strict=True))
        result["ratios"][f"{other.backend} / {first.backend}"] = {
            "clock": statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs),
            "cpu": statistics.median(
                theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs
            ),
        }
    return result


def describe(result: dict[str, Any]) -> str:
    parts = [f"{result['workload']:>8}"]
    for name, runs in result["runs"].items():
        rate = statistics.median(run["tokens"] / run["seconds"] for run in runs)
        cpu = statistics.median(1e3 * run["cpu_seconds"] / run["tokens"] for run in runs)
        parts.append(f"{name} {rate:.0f} tok/s, {cpu:.2f} CPU ms a token")
    for name, ratio in result["ratios"].items():
        parts.append(f"{name}: {ratio['clock']:.2f} by the clock, {ratio['cpu']:.2f} in CPU time")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--backends", default="cpu,torch", help="the first is what others divide by"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=8, help="decode steps of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join([*map(str, STREAMS), "prefill"]))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(
            arguments.model, arguments.serve, arguments.threads, arguments.steps, arguments.rounds
        )
        return
    servers = [Server(backend, arguments) for backend in arguments.backends.split(",")]
    results = []
    for workload in arguments.workloads.split(","):
        results.append(measure(servers, workload, arguments.rounds))
        print(describe(results[-1]), flush=True)
    for server in servers:
        server.close()
    if arguments.output:
        record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "threads": arguments.threads,
            "steps": arguments.steps,
            "loaded": {server.backend: server.loaded for server in servers},
            "results": results,
        }
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
