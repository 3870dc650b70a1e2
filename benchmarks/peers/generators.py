"""Whether `pagewire bench serve` tells what another load generator tells: vLLM's, in turns.

    python -m benchmarks.peers.generators --rounds 5 --output benchmarks/results/NAME.json

One stack with the simulated worker, whose steps take 30 ms; both generators ask it the same number
of random prompts of the same lengths, at the same concurrency or rate. Differences are of the
generators' own work on the same cores, and of what they count: both count TTFT from sending, and a
token's gap between two messages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.peer import SIMULATED, VLLM
from benchmarks.peers.running import Running, end_servers_on_sigterm, running
from benchmarks.peers.suite import ROOT, SUITES
from pagewire.kit.machine import describe_machine

NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 40, 128, 64
SUITE = SUITES["serving"]
# By name, with the flag for it, which both generators have.
LOADS = {"8 at a time": "--max-concurrency=8", "4 a second": "--request-rate=4"}
Figures = dict[str, float]
# Its own command asks for the metadata of a package `vllm`, which its CPU build is not called.
_VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def ask_with_ours(server: Running, load: str, seed: int, folder: Path) -> Figures:
    """Run `pagewire bench serve`."""
    file = folder / "ours.json"
    _run(
        [sys.executable, "-m", "pagewire.cli", "bench", "serve"],
        load,
        seed,
        f"--base-url={server.url}",
        f"--model={server.model}",
        "--metric-percentiles=50,99",
        f"--output-file={file}",
    )
    report = json.loads(file.read_text())["figures"]
    latencies = report["latencies_ms"]
    figures = {"output tok/s": float(report["output_rate"])}
    for name in ("ttft", "tpot", "itl"):
        for percent in (50, 99):
            figures[f"{name} p{percent}, ms"] = latencies[name]["percentiles"][f"{percent}.0"]
    return figures


def ask_with_vllm(server: Running, load: str, seed: int, folder: Path) -> Figures:
    """Run `vllm bench serve`."""
    _run(
        [str(VLLM), "-c", _VLLM_BENCH],
        load,
        seed,
        f"--base-url={server.url}",
        "--backend=openai",
        f"--model={server.model}",
        f"--tokenizer={SUITE.folder}",
        "--dataset-name=random",
        "--percentile-metrics=ttft,tpot,itl",
        "--metric-percentiles=50,99",
        "--save-result",
        f"--result-dir={folder}",
        "--result-filename=theirs.json",
    )
    report = json.loads((folder / "theirs.json").read_text())
    figures = {"output tok/s": float(report["output_throughput"])}
    for name in ("ttft", "tpot", "itl"):
        for percent in (50, 99):
            figures[f"{name} p{percent}, ms"] = report[f"p{percent}_{name}_ms"]
    return figures


GENERATORS = {"pagewire bench serve": ask_with_ours, "vllm bench serve": ask_with_vllm}


def _run(command: Sequence[str], load: str, seed: int, *flags: str) -> None:
    subprocess.run(
        [
            *command,
            *flags,
            load,
            f"--seed={seed}",
            f"--num-prompts={NUM_PROMPTS}",
            f"--random-input-len={INPUT_LEN}",
            f"--random-output-len={OUTPUT_LEN}",
            "--ignore-eos",
        ],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )


def compare(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return medians by load, generator and figure, and medians of rounds' ratios."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    seed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running(SIMULATED, SUITE, folder / "server.log"))
        for load, flag in LOADS.items():
            told: dict[str, list[Figures]] = {name: [] for name in GENERATORS}
            for _ in range(rounds):
                for name, ask in GENERATORS.items():
                    # Of its own, each: the server remembers the prompts of an earlier run.
                    seed += 1
                    told[name].append(ask(server, flag, seed, folder))
                    print(load, name, json.dumps(told[name][-1]), flush=True)
            results[load] = _summary(told)
    return results


def _summary(told: dict[str, list[Figures]]) -> dict[str, dict[str, float]]:
    ours, theirs = told.values()
    names = ours[0].keys()
    summary = {
        generator: {name: statistics.median(run[name] for run in runs) for name in names}
        for generator, runs in told.items()
    }
    summary["ratio"] = {
        name: statistics.median(a[name] / b[name] for a, b in zip(ours, theirs, strict=True))
        for name in names
    }
    return summary


def main(argv: Sequence[str] | None = None) -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    end_servers_on_sigterm()
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "rounds": options.rounds,
        "results": compare(options.rounds),
    }
    text = json.dumps(report, indent=1) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
