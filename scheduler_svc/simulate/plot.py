"""A picture of a run, as SVG that needs nothing else: latencies as histograms, load as curves."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.simulate.measures import Measures, Point, Samples, Series

_WIDTH, _HEIGHT = 420, 180
_MARGIN = 48
_NUM_BINS = 40
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def draw_svg(measures: Measures, series: Sequence[Series]) -> str:
    """Six panels: TTFT, ITL, E2E; running, waiting and KV usage over time, a curve a replica."""
    panels = [
        _histogram_panel("TTFT, ms", measures.ttft_s),
        _histogram_panel("ITL, ms", measures.itl_s),
        _histogram_panel("E2E, ms", measures.e2e_s),
        _curve_panel("running requests", [_curve(one.points, "num_running") for one in series]),
        _curve_panel("waiting requests", [_curve(one.points, "num_waiting") for one in series]),
        _curve_panel("KV cache usage", [_curve(one.points, "kv_cache_usage") for one in series]),
    ]
    width, height = 3 * (_WIDTH + _MARGIN) + _MARGIN, 2 * (_HEIGHT + 2 * _MARGIN)
    placed = [
        f'<g transform="translate({_MARGIN + (index % 3) * (_WIDTH + _MARGIN)}'
        f' {_MARGIN + (index // 3) * (_HEIGHT + 2 * _MARGIN)})">{panel}</g>'
        for index, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(placed) + "</svg>\n"
    )


def _curve(points: Sequence[Point], name: str) -> list[tuple[float, float]]:
    return [(point.time_s, float(getattr(point, name))) for point in points]


def _histogram_panel(title: str, samples: Samples) -> str:
    edges, counts = samples.histogram(_NUM_BINS)
    top = max(counts, default=0) or 1
    bar_width = _WIDTH / _NUM_BINS
    bars = [
        f'<rect x="{index * bar_width:.1f}" y="{_HEIGHT * (1 - count / top):.1f}"'
        f' width="{bar_width:.1f}" height="{_HEIGHT * count / top:.1f}" fill="{_COLORS[0]}"/>'
        for index, count in enumerate(counts)
    ]
    low, high = (1e3 * edges[0], 1e3 * edges[-1]) if edges else (0.0, 0.0)
    return "".join(bars) + _frame(title, low, high, top)


def _curve_panel(title: str, curves: Sequence[Sequence[tuple[float, float]]]) -> str:
    last_s = max((time_s for curve in curves for time_s, _ in curve), default=0.0)
    top = max((value for curve in curves for _, value in curve), default=0.0)
    lines = []
    for index, curve in enumerate(curves):
        points = " ".join(
            f"{_WIDTH * time_s / (last_s or 1):.1f},{_HEIGHT * (1 - value / (top or 1)):.1f}"
            for time_s, value in curve
        )
        color = _COLORS[index % len(_COLORS)]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
    return "".join(lines) + _frame(f"{title} over time, s", 0.0, last_s, top)


def _frame(title: str, low: float, high: float, top: float) -> str:
    return (
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#888"/>'
        f'<text x="0" y="-8" font-weight="bold">{title}</text>'
        f'<text x="{_WIDTH}" y="-8" text-anchor="end">top {top:.4g}</text>'
        f'<text x="0" y="{_HEIGHT + 16}">{low:.4g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{high:.4g}</text>'
    )
