"""Numbers of a run: latencies of each request, percentiles over them, rates, goodput.

Definitions, as in vLLM's own benchmark: TTFT, from sending a request to its first output; ITL, the
gap between two messages with output, whatever they carry; TPOT, the time after the first output
over the tokens after the first; E2E, to the last output. A request that failed counts for none, and
one without any text, such as an output of one special token, has no latencies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pagewire.cli.bench.record import RequestRecord

METRICS = ("ttft", "tpot", "itl", "e2e")
"""Latencies; `itl` has one value a gap, the others one a request."""
REQUEST_METRICS = ("ttft", "tpot", "e2e")
"""Those that an objective can bound."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one request, in milliseconds."""

    ttft: float
    tpot: float | None
    """None: it has one token."""
    e2e: float
    itl: Sequence[float]

    @classmethod
    def of(cls, record: RequestRecord) -> Latencies:
        """Read a record that did not fail and has output."""
        first_s, last_s = record.arrivals_s[0], record.arrivals_s[-1]
        num_later = record.num_output_tokens - 1
        return cls(
            ttft=1e3 * (first_s - record.started_s),
            tpot=1e3 * (last_s - first_s) / num_later if num_later > 0 else None,
            e2e=1e3 * (last_s - record.started_s),
            itl=[1e3 * (later - earlier) for earlier, later in pairwise(record.arrivals_s)],
        )

    def keeps(self, objectives: Mapping[str, float]) -> bool:
        """Whether no latency is above its objective; one that there is none of is not."""
        values = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        return all((values[name] or 0.0) <= bound for name, bound in objectives.items())


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one latency over all requests, in milliseconds."""

    mean: float
    std: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a run."""

    duration_s: float
    num_completed: int
    num_failed: int
    errors: Mapping[str, int]
    """How often each message was the reason of a failure, the most frequent first."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    request_rate: float
    """Requests a second that came to their end."""
    output_rate: float
    """Output tokens a second."""
    total_rate: float
    """Prompt and output tokens a second."""
    messages_per_token: float
    """Below 1: messages carry several tokens, so that their gaps are no gaps of tokens."""
    max_lag_ms: float
    """How late a request was sent, at most: the client had no place for it, or no time."""
    are_tokens_counted: bool
    """Whether the server told token counts; else they are counts of messages."""
    latencies_ms: Mapping[str, Summary]
    """By metric; without those that no request has."""
    goodput: float | None
    """Requests a second that kept all objectives; None: there are none."""


def figures_of(
    records: Sequence[RequestRecord],
    duration_s: float,
    percents: Sequence[float],
    objectives: Mapping[str, float],
) -> Figures:
    """Return the numbers of a run.

    Args:
        records: Of all its requests.
        duration_s: From the start to the last end.
        percents: Which percentiles are wanted.
        objectives: Milliseconds by metric of a request; empty: no goodput.
    """
    completed = [record for record in records if not record.error]
    latencies = [Latencies.of(record) for record in completed if record.arrivals_s]
    values = {
        "ttft": [each.ttft for each in latencies],
        "tpot": [each.tpot for each in latencies if each.tpot is not None],
        "itl": [gap for each in latencies for gap in each.itl],
        "e2e": [each.e2e for each in latencies],
    }
    num_output = sum(record.num_output_tokens for record in completed)
    num_prompt = sum(record.num_prompt_tokens for record in completed)
    num_messages = sum(len(record.arrivals_s) for record in completed)
    num_good = sum(each.keeps(objectives) for each in latencies)
    return Figures(
        duration_s=duration_s,
        num_completed=len(completed),
        num_failed=len(records) - len(completed),
        errors=_count_errors(records),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_cached_tokens=sum(record.num_cached_tokens for record in completed),
        request_rate=_rate(len(completed), duration_s),
        output_rate=_rate(num_output, duration_s),
        total_rate=_rate(num_prompt + num_output, duration_s),
        messages_per_token=num_messages / num_output if num_output else 0.0,
        max_lag_ms=max((1e3 * (r.started_s - r.due_s) for r in records), default=0.0),
        are_tokens_counted=all(record.is_counted_by_server for record in completed),
        latencies_ms={name: _summary(each, percents) for name, each in values.items() if each},
        goodput=_rate(num_good, duration_s) if objectives else None,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile, by linear interpolation between the nearest ranks.

    Args:
        ordered: Values that rise; at least one.
        percent: 0 to 100.
    """
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _summary(values: Sequence[float], percents: Sequence[float]) -> Summary:
    ordered = sorted(values)
    return Summary(
        mean=statistics.fmean(ordered),
        std=statistics.pstdev(ordered),
        percentiles={percent: percentile(ordered, percent) for percent in percents},
    )


def _count_errors(records: Sequence[RequestRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        if record.error:
            counts[record.error] = counts.get(record.error, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
