"""Draws what a run of the benchmark found: `python plots.py RESULTS.json FOLDER`.

It runs in an environment of its own, which has matplotlib and not pagewire.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

STREAMS = {"1 stream": 1, "8 streams": 8, "32 streams": 32, "64 streams": 64}


def draw_throughput(report: dict[str, Any], file: Path) -> None:
    """Draw output tokens a second against streams at a time, a line a peer, dots for all rounds."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for peer, by_workload in report["figures"].items():
        points = {
            streams: values
            for name, streams in STREAMS.items()
            if (values := [value for value in by_workload.get(name, []) if value is not None])
        }
        if not points:
            continue
        medians = [statistics.median(values) for values in points.values()]
        (line,) = axes.plot(list(points), medians, marker="o", label=peer)
        for streams, values in points.items():
            axes.plot([streams] * len(values), values, ".", alpha=0.4, color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(STREAMS.values()), [str(streams) for streams in STREAMS.values()])
    axes.set_xlabel("streams at a time")
    axes.set_ylabel("output tokens/s")
    axes.set_ylim(bottom=0)
    axes.set_title(f"SmolLM2-135M, {report['machine']}\n{report['date'][:10]}", fontsize=9)
    axes.legend(fontsize=8)
    figure.savefig(file, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    """Draw into the folder."""
    matplotlib.use("svg")
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    draw_throughput(json.loads(source.read_text()), folder / f"{source.stem}.svg")


if __name__ == "__main__":
    main()
