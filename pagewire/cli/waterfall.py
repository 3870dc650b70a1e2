"""A trace as text: a bar for each part at its place in time, within a given width.

It knows the objects of GET /v1/requests and nothing of how they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.kit.plain_text import plain

_FULL, _SLIVER = "█", "▏"
_MIN_BAR = 8
_MAX_SHOWN_ROWS = 60


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    start_s: float
    duration_s: float
    note: str = ""


def draw_trace(trace: Mapping[str, Any], width: int) -> str:
    """Return one request: what it was, its timeline, and the sums of its parts."""
    trace = plain(trace)
    duration_s = float(trace["duration_s"])
    lines = [
        *_wrapped(_head(trace), width),
        "",
        *_bars(list(_timeline(trace)), duration_s, width),
        "",
        *_sums(trace, duration_s, width),
    ]
    return "\n".join(lines)


def draw_list(traces: Sequence[Mapping[str, Any]], width: int) -> str:
    """Return a line for each request, with the part that took longest."""
    if not traces:
        return "no requests yet"
    rows = [("id", "took", "first token", "tokens", "longest part", "status")]
    for trace in map(plain, traces):
        parts = trace["parts"]
        longest = max(parts, key=parts.get, default="")
        took_s = trace["duration_s"]
        share = f"{longest} {_percent(parts[longest], took_s)}" if longest else ""
        first_s = trace["time_to_first_token_s"]
        rows.append(
            (
                str(trace["id"]),
                _time(took_s),
                "-" if first_s is None else _time(first_s),
                f"{trace.get('prompt_tokens', 0)}+{trace.get('output_tokens', 0)}",
                share,
                str(trace.get("error") or trace.get("status", "")),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()[:width]
        for row in rows
    )


def _head(trace: Mapping[str, Any]) -> list[str]:
    reasons = ", ".join(f"{k} x{v}" if v > 1 else k for k, v in trace["finish_reasons"].items())
    first_s = trace["time_to_first_token_s"]
    told = [
        str(trace["id"]),
        str(trace.get("model", "")),
        f"{trace.get('route', '')} {trace.get('status', '')}",
        f"{trace.get('prompt_tokens', 0)} prompt tokens ({trace.get('cached_tokens', 0)} cached)",
        f"{trace.get('output_tokens', 0)} output tokens",
        f"took {_time(trace['duration_s'])}",
        "" if first_s is None else f"first token after {_time(first_s)}",
        reasons,
        f"failed: {trace['error']}" if trace.get("error") else "",
        _times("preemption", trace.get("preemptions", 0)),
        _times("recovery", trace.get("recoveries", 0), "recoveries"),
        f"on {', '.join(trace.get('replicas', ()))}" if trace.get("replicas") else "",
    ]
    return [text for text in told if text.strip()]


def _timeline(trace: Mapping[str, Any]) -> Iterable[_Row]:
    """The gateway's own parts, and those of the output that ended last, as they came."""
    boxes, rows = trace["boxes"], []
    for span in trace["spans"]:
        box = boxes.get(span["part"], "")
        rows.append(_Row(f"{box}: {span['part']}", span["start_s"], span["duration_s"]))
    outputs = trace["outputs"]
    for output in outputs:
        if not output["is_last"]:
            continue
        for segment in output["segments"]:
            label = _label(segment, boxes)
            rows.append(_Row(label, segment["start_s"], segment["duration_s"], _note(segment)))
    rows.sort(key=lambda row: row.start_s)
    yield from rows
    if len(outputs) > 1:
        for output in outputs:
            label = f"output {output['index']}"
            yield _Row(label, output["start_s"], output["duration_s"])


def _label(segment: Mapping[str, Any], boxes: Mapping[str, str]) -> str:
    kind = segment["kind"]
    if kind in ("prefill", "decode"):
        return f"worker: {kind}"
    return f"{boxes.get(kind, '')}: {kind}"


def _note(segment: Mapping[str, Any]) -> str:
    kind, steps, tokens = segment["kind"], segment["steps"], segment["tokens"]
    if kind == "prefill":
        return f"{tokens} tokens" + (f" in {steps} steps" if steps > 1 else "")
    if kind == "decode" and steps:
        return f"{steps} steps, {_time(segment['duration_s'] / steps)} each"
    return ""


def _bars(rows: Sequence[_Row], duration_s: float, width: int) -> Iterable[str]:
    """Draw each row at its place between 0 and the end."""
    shown = rows[:_MAX_SHOWN_ROWS]
    label_size = max((len(row.label) for row in shown), default=0)
    time_size = max((len(_time(row.duration_s)) for row in shown), default=0)
    note_size = max((len(row.note) for row in shown), default=0)
    bar_size = width - label_size - time_size - note_size - 6
    if bar_size < _MIN_BAR:  # a narrow terminal: the bars matter more than the notes
        note_size, bar_size = 0, max(_MIN_BAR, width - label_size - time_size - 4)
    for row in shown:
        bar = _bar(row, duration_s, bar_size)
        note = row.note if note_size else ""
        line = f"{row.label:<{label_size}}  {bar}  {_time(row.duration_s):>{time_size}}  {note}"
        yield line.rstrip()[:width]
    if len(rows) > len(shown):
        yield f"({len(rows) - len(shown)} more)"


def _bar(row: _Row, duration_s: float, size: int) -> str:
    scale = size / duration_s if duration_s > 0 else 0.0
    begin = min(int(row.start_s * scale), size - 1)
    filled = min(round(row.duration_s * scale), size - begin)
    return (" " * begin + (_FULL * filled or _SLIVER)).ljust(size)


def _sums(trace: Mapping[str, Any], duration_s: float, width: int) -> Iterable[str]:
    """A line for each part that is not nothing, the longest first, and what they cover."""
    parts: Mapping[str, float] = trace["parts"]
    ordered = sorted(parts, key=lambda name: -parts[name])
    label_size = max((len(name) for name in ordered), default=0)
    for name in ordered:
        share = _percent(parts[name], duration_s)
        line = f"{name:<{label_size}}  {_time(parts[name]):>9}  {share:>5}  {trace['boxes'][name]}"
        yield line[:width]
    yield f"{'sum':<{label_size}}  {_time(sum(parts.values())):>9}  " + (
        f"{_percent(sum(parts.values()), duration_s):>5}  of {_time(duration_s)}"
    )


def _wrapped(texts: Iterable[str], width: int) -> Iterable[str]:
    """Join texts to lines of at most `width`, if none of them is longer."""
    line = ""
    for text in texts:
        longer = f"{line} · {text}" if line else text
        if line and len(longer) > width:
            yield line
            longer = text
        line = longer
    yield line


def _times(what: str, count: int, many: str = "") -> str:
    if not count:
        return ""
    return f"1 {what}" if count == 1 else f"{count} {many or what + 's'}"


def _percent(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:.0f} %" if whole_s > 0 else "-"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"
