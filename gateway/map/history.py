"""Samples of one box over the last two minutes, and what they come to over a window.

A sample has plain numbers by name: gauges as they were, counters as they stood. A counter that has
fallen began anew with its process. It knows no box.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

KEPT_S = 120.0
INTERVAL_S = 1.0
_MAX_SAMPLES = int(KEPT_S / INTERVAL_S)

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment."""

    at_s: float
    values: Values


class History:
    """Bounded by number; samples come in the order of time."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)

    def add(self, at_s: float, values: Values) -> None:
        """Take a sample in."""
        self._samples.append(Sample(at_s, values))

    @property
    def last_s(self) -> float:
        """When it was seen last; there is one sample at least."""
        return self._samples[-1].at_s

    def window(self, since_s: float) -> Window:
        """Return what was seen from then on."""
        return Window([sample for sample in self._samples if sample.at_s >= since_s])

    def rates(self, name: str, bin_s: float) -> list[float]:
        """Return a counter's rates over all that is kept, one a bin, the last one now."""
        samples = list(self._samples)
        size = max(1, round(bin_s / INTERVAL_S))
        ends = range(len(samples) - 1, 0, -size)
        windows = [Window(samples[max(0, end - size) : end + 1]) for end in ends]
        return [window.rate(name) or 0.0 for window in reversed(windows)]


class Window:
    """Some samples in a row. What is not known in any of them is None."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def last(self, name: str) -> float | None:
        """Return a gauge as it was last."""
        values = self._values(name)
        return values[-1] if values else None

    def mean(self, name: str) -> float | None:
        """Return a gauge's mean."""
        values = self._values(name)
        return sum(values) / len(values) if values else None

    def peak(self, name: str) -> float | None:
        """Return a gauge's largest value."""
        return max(self._values(name), default=None)

    def share_above(self, name: str, bound: float) -> float:
        """Return in which share of the samples a gauge was larger; 0 where it is not known."""
        values = self._values(name)
        return sum(value > bound for value in values) / len(values) if values else 0.0

    def growth(self, name: str) -> float | None:
        """Return by how much a counter grew; None: that needs two samples of it."""
        values = self._values(name)
        if len(values) < 2:
            return None
        return sum(
            after if after < before else after - before for before, after in pairwise(values)
        )

    def rate(self, name: str) -> float | None:
        """Return a counter's growth by second."""
        known = [sample for sample in self._samples if name in sample.values]
        growth = self.growth(name)
        if growth is None or (passed_s := known[-1].at_s - known[0].at_s) <= 0:
            return None
        return growth / passed_s

    def ratio(self, name: str, base: str) -> float | None:
        """Return one counter's growth for each of another one's."""
        growth, base_growth = self.growth(name), self.growth(base)
        return growth / base_growth if growth is not None and base_growth else None

    def _values(self, name: str) -> list[float]:
        return [sample.values[name] for sample in self._samples if name in sample.values]
