"""The map as JSON: what `GET /v1/map` answers. A figure that is not known is null."""

from __future__ import annotations

from typing import Any

from gateway.map.boxes import GATEWAY_ID, Box, Edge, Kind
from gateway.map.finding import Finding
from gateway.map.history import Window
from gateway.map.live_map import WINDOW_S, View
from gateway.map.reading import busy_share, starved_share

HISTORY_BIN_S = 2.0
# The counter whose rate shows whether a box lives, by kind.
_PULSE_OF = {
    Kind.GATEWAY: "rpcs",
    Kind.TOKENIZER: "calls",
    Kind.SCHEDULER: "generation_tokens",
    Kind.WORKER: "work_ns",
}
_NS_PER_MS = 1e6

Report = dict[str, Any]


def report(view: View, now_s: float) -> Report:
    """Return the map.

    Args:
        view: How things stand.
        now_s: Unix time.
    """
    windows = {box.id: window for box, window, _ in view.boxes}
    edges = {edge: window for edge, window in view.edges}
    tokens = [rate for w in edges.values() if (rate := w.rate("tokens")) is not None]
    requests = next((w for e, w in view.edges if e.target == GATEWAY_ID), None)
    boxes = []
    for box, window, whole in view.boxes:
        figures = _FIGURES[box.kind](window, windows.get(f"{Kind.SCHEDULER}-{box.replica}"))
        if box.kind is Kind.GATEWAY:
            figures["requests_per_s"] = None if requests is None else requests.rate("messages")
            figures["output_tokens_per_s"] = sum(tokens) if tokens else None
        boxes.append(_box(box, window, whole, figures))
    return {
        "object": "map",
        "created": now_s,
        "window_s": WINDOW_S,
        "diagnosis": _diagnosis(view.diagnose()),
        "boxes": boxes,
        "edges": [_edge(edge, window) for edge, window in view.edges],
    }


def _diagnosis(finding: Finding) -> Report:
    return {
        "verdict": finding.verdict,
        "box": finding.box or None,
        "summary": finding.summary,
        "why": dict(finding.why),
        "try": list(finding.tries),
    }


def _box(box: Box, window: Window, whole: Window, figures: Report) -> Report:
    rates = whole.rates(_PULSE_OF[box.kind], HISTORY_BIN_S)
    return {
        "id": box.id,
        "kind": box.kind.value,
        "replica": box.replica,
        "address": box.address or None,
        "state": box.state.value,
        "version": box.version or None,
        "figures": {name: _rounded(value) for name, value in figures.items()},
        "process": _process(window),
        "history": [_rounded(rate) for rate in rates],
    }


def _process(window: Window) -> Report | None:
    uptime_ns = window.last("uptime_ns")
    if uptime_ns is None:
        return None
    figures = {
        "cpu_cores": window.ratio("cpu_ns", "uptime_ns"),
        "waiting_threads": window.ratio("wait_ns", "uptime_ns"),
        "loop_lag_max_ms": _ms(window.peak("lag_max_ns")),
        "loop_lag_mean_ms": _ms(window.mean("lag_mean_ns")),
        "rss_bytes": window.last("rss_bytes"),
        "num_cpus": window.last("num_cpus"),
        "uptime_s": uptime_ns / 1e9,
        "rpcs_per_s": window.rate("rpcs"),
    }
    return {name: _rounded(value) for name, value in figures.items()}


def _edge(edge: Edge, window: Window) -> Report:
    return {
        "from": edge.source,
        "to": edge.target,
        "messages_per_s": _rounded(window.rate("messages")),
        "round_trip_ms": _rounded(_ms(window.last("round_trip_ns"))),
    }


def _gateway_figures(window: Window, _: Window | None) -> Report:
    return {
        "live_requests": window.last("live"),
        "blocked_requests": window.last("blocked"),
        "unread_bytes": window.last("unread_bytes"),
    }


def _tokenizer_figures(window: Window, _: Window | None) -> Report:
    return {
        "calls_per_s": window.rate("calls"),
        "calls_in_flight": window.last("in_flight"),
        "call_ms": _ms(window.ratio("calls_ns", "calls")),
        "busy_share": busy_share(window),
        "threads": window.last("work_threads"),
    }


def _scheduler_figures(window: Window, _: Window | None) -> Report:
    return {
        "running": window.last("running"),
        "waiting": window.last("waiting"),
        "deferred": window.last("deferred"),
        "max_num_seqs": window.last("max_num_seqs"),
        "kv_usage": window.last("kv_usage"),
        "cache_hit_rate": window.ratio("cache_hits", "cache_queries"),
        "preemptions_per_s": window.rate("preemptions"),
        "generation_tokens_per_s": window.rate("generation_tokens"),
        "prompt_tokens_per_s": window.rate("prompt_tokens"),
        "steps_per_s": window.rate("steps"),
        "schedule_ms": _a_step(window, "schedule"),
        "execute_ms": _a_step(window, "execute"),
        "wire_ms": _wire_ms(window),
    }


def _worker_figures(window: Window, engine: Window | None) -> Report:
    share = busy_share(window)
    figures: Report = {
        "busy_share": share,
        "idle_share": None if share is None else 1.0 - share,
        "starved_share": None if engine is None else starved_share(engine),
        "queued": window.last("work_items"),
    }
    for part in ("queue", "prepare", "forward", "sample", "busy"):
        name = "wait_ms" if part == "queue" else f"{part}_ms"
        figures[name] = None if engine is None else _a_step(engine, part)
    return figures


_FIGURES = {
    Kind.GATEWAY: _gateway_figures,
    Kind.TOKENIZER: _tokenizer_figures,
    Kind.SCHEDULER: _scheduler_figures,
    Kind.WORKER: _worker_figures,
}


def _a_step(engine: Window, part: str) -> float | None:
    return _ms(engine.ratio(f"{part}_ns", "steps"))


def _wire_ms(engine: Window) -> float | None:
    """Return what is left of a step beside the worker's work and waits: the way there and back."""
    parts = [_a_step(engine, part) for part in ("execute", "queue", "busy")]
    execute, queue, busy = parts
    if execute is None or queue is None or busy is None:
        return None
    return max(0.0, execute - queue - busy)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / _NS_PER_MS


def _rounded(value: float | None) -> float | int | None:
    """Return it with as many digits as it is worth; whole numbers stay whole."""
    if value is None:
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)
