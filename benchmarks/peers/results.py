"""Figures of a run of the benchmark, and what they say: medians, ratios, a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.workloads import Workload

Latencies = dict[str, dict[str, float]]
"""Milliseconds by `ttft` or `itl` and percentile."""


@dataclass(slots=True)
class Results:
    """All that was measured; lists have one value a round, None where a run failed."""

    machine: str
    date: str
    rounds: int
    figures: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    """By peer and workload."""
    latencies: dict[str, dict[str, list[Latencies]]] = field(default_factory=dict)
    """By peer and workload, of the runs of servers that answered."""
    probes: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """GFLOP/s just before each run, by peer and workload."""
    floors: list[dict[int, float]] = field(default_factory=list)
    """Seconds of a step's matrix products by rows, of each round."""
    first_token_s: dict[str, list[float]] = field(default_factory=dict)
    """From a process's start to its first token, by peer; the first start comes first."""
    max_pss_gb: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a peer was not measured, or a run of it failed."""
    ours: list[str] = field(default_factory=list)

    def add(self, peer: str, workload: str, figure: float | None, probe: float) -> None:
        self.figures.setdefault(peer, {}).setdefault(workload, []).append(figure)
        self.probes.setdefault(peer, {}).setdefault(workload, []).append(probe)

    def add_latencies(self, peer: str, workload: str, latencies: Latencies) -> None:
        self.latencies.setdefault(peer, {}).setdefault(workload, []).append(latencies)

    def median(self, peer: str, workload: str) -> float | None:
        values = [v for v in self.figures.get(peer, {}).get(workload, []) if v is not None]
        return statistics.median(values) if values else None

    def ratio(self, ours: str, peer: str, workload: Workload) -> float | None:
        """Median over rounds of how many times better ours is."""
        pairs = zip(
            self.figures.get(ours, {}).get(workload.name, []),
            self.figures.get(peer, {}).get(workload.name, []),
            strict=False,
        )
        ratios = [workload.ratio(a, b) for a, b in pairs if a and b]
        return statistics.median(ratios) if ratios else None

    def best_peer(self, workload: Workload) -> str | None:
        """The peer with the best median, ours aside."""
        medians = {
            peer: value
            for peer in self.figures
            if peer not in self.ours and (value := self.median(peer, workload.name)) is not None
        }
        if not medians:
            return None
        choose = max if workload.is_more_better else min
        return choose(medians, key=medians.__getitem__)

    def floor(self, workload: Workload) -> float | None:
        """Median of what the matrix products alone would give."""
        if not workload.floor_rows:
            return None
        values = [workload.floor(floor[workload.floor_rows]) for floor in self.floors]
        return statistics.median(values) if values else None


def to_markdown(results: Results, workloads: Sequence[Workload]) -> str:
    """Return the table of a run."""
    peers = list(results.figures)
    lines = [
        f"{results.machine}, {results.date}, medians of {results.rounds} rounds in turns.",
        "",
        _row(["workload", *peers, "GEMM floor", *_ratio_heads(results)]),
        _row(["---"] * (2 + len(peers) + len(results.ours))),
    ]
    lines += [_row(_cells(results, workload, peers)) for workload in workloads]
    lines += [
        _row(["start to first token, s", *_starts(results, peers), "", *_blanks(results)]),
        _row(["peak memory (PSS), GB", *_memory(results, peers), "", *_blanks(results)]),
    ]
    if results.missing:
        lines.append("")
        lines += [f"- {peer}: not measured: {why}" for peer, why in results.missing.items()]
    rates = [value for each in results.probes.values() for runs in each.values() for value in runs]
    if rates:
        lines += [
            "",
            f"Matrix product before each run: {min(rates):.0f} to {max(rates):.0f} GFLOP/s.",
        ]
    return "\n".join(lines) + "\n"


def _cells(results: Results, workload: Workload, peers: Sequence[str]) -> Iterator[str]:
    yield f"{workload.name}, {workload.unit}"
    for peer in peers:
        yield _number(results.median(peer, workload.name))
    yield _number(results.floor(workload))
    best = results.best_peer(workload)
    for ours in results.ours:
        ratio = None if best is None else results.ratio(ours, best, workload)
        yield "-" if ratio is None else f"{ratio:.2f} x {best}"


def _ratio_heads(results: Results) -> list[str]:
    return [f"{ours} to the best peer" for ours in results.ours]


def _blanks(results: Results) -> list[str]:
    return [""] * len(results.ours)


def _starts(results: Results, peers: Sequence[str]) -> Iterator[str]:
    """The first start and the median of later ones."""
    for peer in peers:
        first, *later = results.first_token_s.get(peer) or [0.0]
        warm = f", then {statistics.median(later):.1f}" if later else ""
        yield f"{first:.1f}{warm}" if first else "-"


def _memory(results: Results, peers: Sequence[str]) -> Iterator[str]:
    for peer in peers:
        yield _number(results.max_pss_gb.get(peer))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _row(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"
