"""What a simulation counts, in memory that does not grow with output tokens.

`Samples` keeps values with weights (a step gives one gap between tokens for all its rows at once),
`Series` a curve over time with a bounded number of points, `Measures` is all that is known of one
run. Nothing here knows scheduling.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


class Samples:
    """Values with integer weights: 16 bytes each, whatever the weight."""

    def __init__(self) -> None:
        self._values = array("d")
        self._weights = array("q")
        self.num_samples = 0
        """The weights together."""

    def add(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self._values.append(value)
        self._weights.append(weight)
        self.num_samples += weight

    def extend(self, other: Samples) -> None:
        self._values.extend(other._values)
        self._weights.extend(other._weights)
        self.num_samples += other.num_samples

    @property
    def mean(self) -> float:
        """Zero if nothing was counted."""
        if not self.num_samples:
            return 0.0
        total = sum(value * weight for value, weight in self._pairs())
        return total / self.num_samples

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """For each share, ascending, the least value that so many of the samples do not exceed."""
        found: list[float] = []
        wanted = iter(shares)
        share = next(wanted, None)
        num_seen, value = 0, 0.0
        for value, weight in sorted(self._pairs()):
            num_seen += weight
            while share is not None and num_seen >= share * self.num_samples:
                found.append(value)
                share = next(wanted, None)
        return found + [value] * (len(shares) - len(found))

    def histogram(self, num_bins: int) -> tuple[list[float], list[int]]:
        """Edges (one more than bins) and weights of bins of equal width."""
        if not self.num_samples:
            return [], []
        low, high = min(self._values), max(self._values)
        width = (high - low) / num_bins or 1.0
        counts = [0] * num_bins
        for value, weight in self._pairs():
            counts[min(int((value - low) / width), num_bins - 1)] += weight
        return [low + width * index for index in range(num_bins + 1)], counts

    def _pairs(self) -> zip[tuple[float, int]]:
        return zip(self._values, self._weights, strict=True)


@dataclass(frozen=True, slots=True)
class Point:
    """The state of one replica at the end of a step."""

    time_s: float
    num_running: int
    num_waiting: int
    kv_cache_usage: float


class Series:
    """A curve: at most `max_points`; when it is full every second point goes."""

    def __init__(self, max_points: int = 1000) -> None:
        self.points: list[Point] = []
        self._max_points = max_points
        self._interval_s = 0.0
        self._next_s = 0.0

    def is_due(self, time_s: float) -> bool:
        """Whether a point at this time would be kept."""
        return time_s >= self._next_s

    def add(self, point: Point) -> None:
        """Keep a point; the times of points ascend."""
        self.points.append(point)
        if len(self.points) >= self._max_points:
            self.points = self.points[::2]
            elapsed_s = point.time_s - self.points[0].time_s
            self._interval_s = 2 * elapsed_s / self._max_points
        self._next_s = point.time_s + self._interval_s


@dataclass(slots=True)
class Measures:
    """All that is counted; one a replica, and their sum."""

    ttft_s: Samples = field(default_factory=Samples)
    """Arrival to first token."""
    itl_s: Samples = field(default_factory=Samples)
    """Between two tokens of a request."""
    e2e_s: Samples = field(default_factory=Samples)
    """Arrival to last token."""
    queue_s: Samples = field(default_factory=Samples)
    """Arrival to first step."""
    num_steps: int = 0
    busy_s: float = 0.0
    """Virtual time in steps."""
    end_s: float = 0.0
    """End of the last step."""
    num_requests: int = 0
    num_finished: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests that can never be served, by reason."""
    num_rejected: int = 0
    """Found the queue full."""
    num_prompt_tokens: int = 0
    """Of finished requests, as the next two."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0

    def add(self, other: Measures) -> None:
        """Take in the measures of another replica."""
        for name in ("ttft_s", "itl_s", "e2e_s", "queue_s"):
            getattr(self, name).extend(getattr(other, name))
        self.end_s = max(self.end_s, other.end_s)
        self.refusals += other.refusals
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_SUMS = (
    "num_steps",
    "busy_s",
    "num_requests",
    "num_finished",
    "num_rejected",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
