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

STREAMS = {
    "1 stream": 1,
    "8 streams": 8,
    "32 streams": 32,
    "64 streams": 64,
    "256 streams": 256,
}
LATENCIES = {"ttft": "to the first token, ms", "itl": "between messages, ms"}


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
    ticks = sorted(
        {STREAMS[name] for runs in report["figures"].values() for name in runs if name in STREAMS}
    )
    axes.set_xticks(ticks, [str(streams) for streams in ticks])
    axes.set_xlabel("streams at a time")
    axes.set_ylabel("output tokens/s")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{report['machine']}\n{report['date'][:10]}", fontsize=9)
    axes.legend(fontsize=8)
    figure.savefig(file, bbox_inches="tight")
    pyplot.close(figure)


def draw_latencies(report: dict[str, Any], file: Path) -> None:
    """Draw the median and the 99th percentile of each latency against streams at a time."""
    figure, rows = pyplot.subplots(len(LATENCIES), 1, figsize=(8, 9))
    for axes, (latency, label) in zip(rows, LATENCIES.items(), strict=True):
        for peer, by_workload in report["latencies"].items():
            color = None
            for percentile, style in (("50.0", "-"), ("99.0", ":")):
                points = _percentiles(by_workload, latency, percentile)
                told = {"label": peer} if color is None else {"color": color}
                (line,) = axes.plot(list(points), list(points.values()), style, marker="o", **told)
                color = line.get_color()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_ylabel(label)
        axes.legend(fontsize=8)
    rows[0].set_title(f"{report['machine']}\nlines: median, dots: 99th percentile", fontsize=9)
    rows[-1].set_xlabel("streams at a time")
    figure.savefig(file, bbox_inches="tight")
    pyplot.close(figure)


def _percentiles(
    by_workload: dict[str, list[dict[str, dict[str, float]]]], latency: str, percentile: str
) -> dict[int, float]:
    """Medians over rounds, by streams."""
    return {
        streams: statistics.median(values)
        for name, streams in STREAMS.items()
        if (
            values := [
                run[latency][percentile]
                for run in by_workload.get(name, [])
                if run.get(latency, {}).get(percentile) is not None
            ]
        )
    }


def main() -> None:
    """Draw into the folder."""
    matplotlib.use("svg")
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    report = json.loads(source.read_text())
    draw_throughput(report, folder / f"{source.stem}.svg")
    draw_latencies(report, folder / f"{source.stem}-latencies.svg")


if __name__ == "__main__":
    main()
