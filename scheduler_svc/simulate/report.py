"""What a simulation found, as JSON and as text. It computes shares and quantiles, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler_svc.simulate.measures import Measures, Samples, Series

QUANTILES = (0.5, 0.9, 0.95, 0.99)
_BAR_CHARS = 40
_LATENCIES = (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"), ("queued", "queue_s"))


def make_report(
    measures: Measures, series: Sequence[Series], about: dict[str, Any], wall_s: float
) -> dict[str, Any]:
    """All figures of a run as plain data.

    Args:
        measures: Of all replicas together.
        series: One a replica.
        about: What was simulated.
        wall_s: How long the simulation itself took.
    """
    virtual_s = measures.end_s or 1.0
    num_replicas = len(series)
    return {
        "about": about,
        "requests": {
            "arrived": measures.num_requests,
            "finished": measures.num_finished,
            "refused": measures.refusals.total(),
            "rejected": measures.num_rejected,
        },
        "refusals": dict(measures.refusals),
        "latency_s": {name: _latency(getattr(measures, name)) for _, name in _LATENCIES},
        "throughput": {
            "duration_s": measures.end_s,
            "requests_per_s": measures.num_finished / virtual_s,
            "prompt_tokens_per_s": measures.num_prompt_tokens / virtual_s,
            "output_tokens_per_s": measures.num_output_tokens / virtual_s,
            "busy_share": measures.busy_s / (virtual_s * num_replicas),
        },
        "scheduler": {
            "steps": measures.num_steps,
            "preemptions": measures.num_preemptions,
            "prompt_tokens": measures.num_prompt_tokens,
            "output_tokens": measures.num_output_tokens,
            "cached_tokens": measures.num_cached_tokens,
            "prefix_cache_hit_rate": _share(
                measures.prefix_cache_hits, measures.prefix_cache_queries
            ),
        },
        "over_time": [
            {
                "time_s": [point.time_s for point in one.points],
                "num_running": [point.num_running for point in one.points],
                "num_waiting": [point.num_waiting for point in one.points],
                "kv_cache_usage": [round(point.kv_cache_usage, 4) for point in one.points],
            }
            for one in series
        ],
        "wall_s": wall_s,
    }


def _latency(samples: Samples) -> dict[str, float]:
    values = samples.quantiles((*QUANTILES, 1.0)) if samples.num_samples else [0.0] * 5
    names = [*(f"p{round(100 * share)}" for share in QUANTILES), "max"]
    return {"mean": samples.mean, **dict(zip(names, values, strict=True))}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def format_report(report: dict[str, Any], measures: Measures) -> str:
    """The figures that a person looks at first, with a histogram of the time to first token."""
    requests, throughput = report["requests"], report["throughput"]
    scheduler = report["scheduler"]
    lines = [
        "  ".join(f"{name} {value}" for name, value in report["about"].items()),
        "",
        f"{'ms':8}"
        + "".join(f"{name:>12}" for name in ("mean", "p50", "p90", "p95", "p99", "max")),
        *(
            f"{label:8}" + "".join(f"{1e3 * v:12.2f}" for v in report["latency_s"][name].values())
            for label, name in _LATENCIES
        ),
        "",
        "requests      "
        + ", ".join(f"{value} {name}" for name, value in requests.items())
        + "".join(f"; {reason}: {number}" for reason, number in report["refusals"].items()),
        f"throughput    {throughput['requests_per_s']:.2f} requests/s,"
        f" {throughput['output_tokens_per_s']:.0f} output tokens/s,"
        f" {throughput['prompt_tokens_per_s']:.0f} prompt tokens/s",
        f"time          {throughput['duration_s']:.2f} s simulated, workers busy"
        f" {throughput['busy_share']:.1%}; it took {report['wall_s']:.2f} s",
        f"scheduler     {scheduler['steps']} steps, {scheduler['preemptions']} preemptions,"
        f" {scheduler['prefix_cache_hit_rate']:.1%} of looked-up tokens cached",
        *_queue_lines(report["over_time"]),
        "",
        "TTFT, ms",
        *_histogram_lines(measures.ttft_s),
    ]
    return "\n".join(lines)


def _queue_lines(over_time: Sequence[dict[str, list[float]]]) -> list[str]:
    lines = []
    for index, curve in enumerate(over_time):
        if curve["time_s"]:
            name = f"replica {index}" if len(over_time) > 1 else "load"
            lines.append(
                f"{name:14}at most {max(curve['num_running'])} running,"
                f" {max(curve['num_waiting'])} waiting, KV {max(curve['kv_cache_usage']):.1%}"
                f"   waiting {_sparkline(curve['num_waiting'])}"
            )
    return lines


def _sparkline(values: Sequence[float], width: int = 32) -> str:
    size = -(-len(values) // width)
    peaks = [max(values[start : start + size]) for start in range(0, len(values), size)]
    top = max(peaks) or 1
    return "".join("▁▂▃▄▅▆▇█"[round(7 * peak / top)] for peak in peaks)


def _histogram_lines(samples: Samples, num_bins: int = 10) -> list[str]:
    edges, counts = samples.histogram(num_bins)
    top = max(counts, default=0) or 1
    return [
        f"{1e3 * edges[index]:10.1f} {'#' * round(_BAR_CHARS * count / top):{_BAR_CHARS}} {count}"
        for index, count in enumerate(counts)
    ]
