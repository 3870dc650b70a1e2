"""A histogram of plain integers and one sum, cheap enough to be told of every token.

It has no lock and no clock, so it belongs to one thread; another may read it at any time and gets
figures of a moment ago. Buckets are Prometheus's: an observation belongs to the first bound that it
does not exceed. It knows no metrics library: `pagewire.kit.metric_families` shows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts observations by bucket; grows forever."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Begin empty.

        Args:
            bounds: Upper bounds of the buckets, rising; what exceeds the last one has a bucket of
                its own.
        """
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, num: int) -> None:
        """Count the same value `num` times."""
        self.counts[bisect_left(self.bounds, value)] += num
        self.sum += value * num


def one_two_five(limit: int) -> list[int]:
    """Return the bounds 1, 2, 5, 10, 20, 50, ... up to `limit`; at least 1."""
    bounds, power = [1], 1
    while True:
        for step in (2, 5, 10):
            if step * power > limit:
                return bounds
            bounds.append(step * power)
        power *= 10
