"""Runs the benchmark: `python -m benchmarks.peers --help`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.peer import ENVIRONMENTS, PEERS, ROOT
from benchmarks.peers.results import Results, to_markdown
from benchmarks.peers.rounds import measure
from benchmarks.peers.workloads import WORKLOADS

RESULTS = ROOT / "benchmarks" / "results"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--more-starts", type=int, default=2, help="for the time of warm starts")
    parser.add_argument("--only", help="peers, by parts of their names, comma between")
    parser.add_argument("--workloads", help="workloads, by parts of their names, comma between")
    parser.add_argument("--name", help="of the result files; default: peers and the date")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it, the figures and the plot to results/."""
    options = parse(argv)
    wanted = [peer for peer in PEERS if _is_wanted(peer.name, options.only)]
    workloads = [row for row in WORKLOADS if _is_wanted(row.name, options.workloads)]
    installed = [peer for peer in wanted if not peer.missing]
    if not installed or not workloads:
        print("nothing to measure: no peer or no workload has such a name", file=sys.stderr)
        return 2
    # Servers are ended on the way out, which SIGTERM's own way is not.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # It stays: the logs say why a server failed.
    logs = Path(tempfile.mkdtemp(prefix="pagewire-bench-"))
    results = measure(installed, workloads, options.rounds, options.more_starts, logs, _say)
    for peer in wanted:
        if peer not in installed:
            results.missing[peer.name] = "not installed: python -m benchmarks.peers.environments"
    print(to_markdown(results))
    _write(results, options.name or f"peers-{results.date[:10]}")
    return 0


def _write(results: Results, name: str) -> None:
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps(asdict(results), indent=1) + "\n")
    file.with_suffix(".md").write_text(to_markdown(results))
    python = ENVIRONMENTS / "plots" / "bin" / "python"
    if not python.exists():
        _say("no plot: python -m benchmarks.peers.environments plots")
        return
    script = Path(__file__).with_name("plots.py")
    subprocess.run([str(python), str(script), str(file), str(RESULTS)], check=True)


def _is_wanted(name: str, parts: str | None) -> bool:
    return parts is None or any(part.strip() in name for part in parts.split(","))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
