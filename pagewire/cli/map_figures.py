"""The live map's figures as short texts, by kind of box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# A line each: label and figure, or label, figure and what it is out of.
_LINES: Mapping[str, Sequence[Sequence[tuple[str, ...]]]] = {
    "gateway": (
        (("requests", "live_requests"), ("new", "requests_per_s")),
        (("tokens", "output_tokens_per_s"),),
        (("slow clients", "blocked_requests"), ("unread", "unread_bytes")),
    ),
    "tokenizer": (
        (("calls", "calls_in_flight"), ("ended", "calls_per_s"), ("each", "call_ms")),
        (("threads busy", "busy_share"), ("of", "threads")),
    ),
    "scheduler": (
        (("running", "running", "max_num_seqs"), ("waiting", "waiting")),
        (("KV", "kv_usage"), ("cache hits", "cache_hit_rate")),
        (("preemptions", "preemptions_per_s"), ("deferred", "deferred")),
        (("tokens", "generation_tokens_per_s"), ("prompts", "prompt_tokens_per_s")),
        (("steps", "steps_per_s"), ("planned in", "schedule_ms"), ("way", "wire_ms")),
    ),
    "worker": (
        (("idle", "idle_share"), ("lacks steps", "starved_share")),
        (("step", "busy_ms"), ("waits", "wait_ms")),
        (("prepare", "prepare_ms"), ("forward", "forward_ms"), ("sample", "sample_ms")),
    ),
}
_KIB = 1024.0


def figure_lines(box: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a box does; unknown figures are left out, and lines without any."""
    figures = box["figures"]
    for line in _LINES.get(box["kind"], ()):
        texts = [text for entry in line if (text := _entry(figures, entry))]
        if texts:
            yield "  ".join(texts)


def process_text(process: Mapping[str, Any] | None) -> str:
    """Return what a process uses; empty: it has told nothing."""
    if process is None:
        return ""
    texts = [
        f"{label} {text}"
        for label, name in (
            ("cores", "cpu_cores"),
            ("lacks", "waiting_threads"),
            ("lag", "loop_lag_mean_ms"),
            ("mem", "rss_bytes"),
        )
        if (text := as_text(name, process.get(name)))
    ]
    return "  ".join(texts)


def edge_text(edge: Mapping[str, Any] | None) -> str:
    """Return what an edge carries."""
    if edge is None:
        return ""
    names = ("messages_per_s", "round_trip_ms")
    return "  ".join(text for name in names if (text := as_text(name, edge.get(name))))


def as_text(name: str, value: float | None) -> str:
    """Return a figure with its unit, which its name tells; empty: it is not known."""
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return _bytes(value)
    if name.endswith("_ms"):
        return f"{_short(value)} ms" if value < 1000 else f"{value / 1000:.1f} s"
    if name.endswith("_per_s"):
        return f"{_short(value)}/s"
    if name.endswith(("_share", "_rate", "_usage")):
        return f"{value:.0%}"
    return _short(value)


def _entry(figures: Mapping[str, Any], entry: tuple[str, ...]) -> str:
    label, name, *of = entry
    text = as_text(name, figures.get(name))
    if not text:
        return ""
    total = as_text(of[0], figures.get(of[0])) if of else ""
    return f"{label} {text} of {total}" if total else f"{label} {text}"


def _short(value: float) -> str:
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < _KIB:
            return f"{value:.0f} {unit}"
        value /= _KIB
    return f"{value:.1f} GiB"
