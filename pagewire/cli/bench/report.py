"""Figures of a run as JSON and as a table for a terminal."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pagewire import __version__
from pagewire.cli.bench.figures import Figures, Summary
from pagewire.kit.machine import describe_machine
from pagewire.kit.plain_text import one_line

_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per later token",
    "itl": "between messages",
    "e2e": "to the last token",
}
_MAX_ERRORS = 5


def to_json(figures: Figures, settings: Mapping[str, Any]) -> str:
    """Return all figures, with when, where and how they were taken."""
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "client": {
            "pagewire": __version__,
            "machine": describe_machine(),
        },
        "settings": settings,
        "figures": asdict(figures),
    }
    return json.dumps(report, indent=2, default=str) + "\n"


def to_text(figures: Figures) -> str:
    """Return a table, with notes where figures do not mean what they seem to."""
    return "\n".join([*_counts(figures), "", *_latencies(figures), *_notes(figures)])


def _counts(figures: Figures) -> Iterator[str]:
    yield _row("requests completed", str(figures.num_completed))
    yield _row("requests failed", str(figures.num_failed))
    yield _row("duration, s", f"{figures.duration_s:.2f}")
    yield _row("requests/s", f"{figures.request_rate:.2f}")
    if figures.goodput is not None:
        yield _row("requests/s within the objectives", f"{figures.goodput:.2f}")
    yield _row("prompt tokens", str(figures.num_prompt_tokens))
    yield _row("  of them cached", str(figures.num_cached_tokens))
    yield _row("output tokens", str(figures.num_output_tokens))
    yield _row("output tokens/s", f"{figures.output_rate:.1f}")
    yield _row("all tokens/s", f"{figures.total_rate:.1f}")


def _latencies(figures: Figures) -> Iterator[str]:
    if not figures.latencies_ms:
        return
    percents = next(iter(figures.latencies_ms.values())).percentiles
    heads = ["mean", *(f"p{percent:g}" for percent in percents)]
    yield f"{'milliseconds':<34}" + "".join(f"{head:>11}" for head in heads)
    for name, summary in figures.latencies_ms.items():
        yield f"{_NAMES[name]:<34}" + "".join(f"{value:>11.2f}" for value in _values(summary))


def _notes(figures: Figures) -> Iterator[str]:
    if figures.num_output_tokens and figures.messages_per_token < 0.95:
        per_message = 1 / figures.messages_per_token
        yield f"\nA message has {per_message:.2f} tokens on average: the server merges them."
    if figures.num_completed and not figures.are_tokens_counted:
        yield "\nThe server does not tell token counts: tokens are counts of messages."
    for message, count in list(figures.errors.items())[:_MAX_ERRORS]:
        yield f"\n{count} failed: {one_line(message)}"


def _row(name: str, value: str) -> str:
    return f"{name:<34}{value:>11}"


def _values(summary: Summary) -> list[float]:
    return [summary.mean, *summary.percentiles.values()]
