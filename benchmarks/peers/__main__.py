"""Runs the benchmark: `python -m benchmarks.peers --help`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.peers.peer import PEERS
from benchmarks.peers.results import Results, to_markdown
from benchmarks.peers.rounds import measure
from benchmarks.peers.running import end_servers_on_sigterm
from benchmarks.peers.suite import ENVIRONMENTS, ROOT, SUITES

RESULTS = ROOT / "benchmarks" / "results"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--suite", choices=tuple(SUITES), default="serving")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--more-starts", type=int, default=2, help="for the time of warm starts")
    parser.add_argument("--only", help="peers: names or parts of them, comma between")
    parser.add_argument("--workloads", help="workloads: names or parts of them, comma between")
    parser.add_argument("--name", help="of the result files; default: the suite and the date")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it, the figures and the plot to results/.

    The table and the figures are there after each round.
    """
    options = parse(argv)
    suite = SUITES[options.suite]
    rows = _wanted([row.name for row in suite.workloads], options.workloads)
    workloads = [row for row in suite.workloads if row.name in rows]
    suite = replace(suite, workloads=workloads)
    names = _wanted([peer.name for peer in PEERS], options.only)
    missing = {peer.name: peer.missing(suite) for peer in PEERS if peer.name in names}
    ready = [peer for peer in PEERS if missing.get(peer.name) == ""]
    if not ready or not workloads:
        print(f"nothing to measure: {missing or 'no such peer or workload'}", file=sys.stderr)
        return 2
    end_servers_on_sigterm()
    # It stays: the logs say why a server failed.
    logs = Path(tempfile.mkdtemp(prefix="pagewire-bench-"))

    def write(results: Results) -> Path:
        file = RESULTS / f"{options.name or f'{options.suite}-{results.date[:10]}'}.json"
        _replace(file, json.dumps(asdict(results), indent=1) + "\n")
        _replace(file.with_suffix(".md"), to_markdown(results, workloads))
        return file

    absent = {name: why for name, why in missing.items() if why}
    rounds, starts = options.rounds, options.more_starts
    file = write(measure(ready, absent, suite, rounds, starts, logs, _say, write))
    print(file.with_suffix(".md").read_text())
    _plot(file)
    return 0


def _replace(file: Path, text: str) -> None:
    """Write a file in one go: what an interrupted run had before stays whole."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def _plot(file: Path) -> None:
    python = ENVIRONMENTS / "plots" / "bin" / "python"
    if not python.exists():
        _say("no plot: python -m benchmarks.peers.environments plots")
        return
    script = Path(__file__).with_name("plots.py")
    subprocess.run([str(python), str(script), str(file), str(RESULTS)], check=True)


def _wanted(names: Sequence[str], parts: str | None) -> set[str]:
    """Names that have one of the parts; of a part that is a whole name, that one alone."""
    if parts is None:
        return set(names)
    found: set[str] = set()
    for part in map(str.strip, parts.split(",")):
        found |= {part} if part in names else {name for name in names if part in name}
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
