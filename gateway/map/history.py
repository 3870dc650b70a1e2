"""Samples of one box over the last two minutes, and what they come to over a window.

A sample has plain numbers by name: gauges as they were, counters as they stood. A counter that has
fallen began anew with its process. It knows no box.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

KEPT_S = 120.0
INTERVAL_S = 1.0
_MAX_SAMPLES = int(KEPT_S / INTERVAL_S)

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment; numbers side by side, since many are kept."""

    at_s: float
    names: tuple[str, ...]
    numbers: array[float]

    @classmethod
    def of(cls, at_s: float, values: Values, names: tuple[str, ...] = ()) -> Sample:
        """Make one of values by name.

        Args:
            at_s: When they were so.
            values: Figures.
            names: Those of an earlier sample, which share one place in memory if they are the same.
        """
        own = tuple(values)
        return cls(at_s, names if names == own else own, array("d", values.values()))


class History:
    """Bounded by number; samples come in the order of time."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_MAX_SAMPLES)

    def add(self, at_s: float, values: Values) -> None:
        """Take a sample in."""
        names = self._samples[-1].names if self._samples else ()
        self._samples.append(Sample.of(at_s, values, names))

    @property
    def last_s(self) -> float:
        """When it was seen last; there is one sample at least."""
        return self._samples[-1].at_s

    def window(self, since_s: float) -> Window:
        """Return what was seen from then on."""
        recent = takewhile(lambda sample: sample.at_s >= since_s, reversed(self._samples))
        return Window(list(recent)[::-1])

    def whole(self) -> Window:
        """Return all that is kept."""
        return Window(list(self._samples))


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
        return _growth(values) if len(values) > 1 else None

    def rate(self, name: str) -> float | None:
        """Return a counter's growth by second."""
        points = _points(self._samples, name)
        if len(points) < 2:
            return None
        return _growth([value for _, value in points]) / _passed_s(points)

    def rates(self, name: str, bin_s: float) -> list[float]:
        """Return a counter's rates, one a bin, the last one up to now."""
        known = _points(self._samples, name)
        size = max(1, round(bin_s / INTERVAL_S))
        rates = []
        for end in range(len(known) - 1, 0, -size):
            points = known[max(0, end - size) : end + 1]
            rates.append(_growth([value for _, value in points]) / _passed_s(points))
        return rates[::-1]

    def ratio(self, name: str, base: str) -> float | None:
        """Return one counter's growth for each of another one's."""
        growth, base_growth = self.growth(name), self.growth(base)
        return growth / base_growth if growth is not None and base_growth else None

    def _values(self, name: str) -> list[float]:
        return [value for _, value in _points(self._samples, name)]


def _points(samples: Iterable[Sample], name: str) -> list[tuple[float, float]]:
    """Return when a figure was known, and what it was."""
    points, names, place = list[tuple[float, float]](), None, -1
    for sample in samples:
        if sample.names is not names:
            names = sample.names
            place = names.index(name) if name in names else -1
        if place >= 0:
            points.append((sample.at_s, sample.numbers[place]))
    return points


def _growth(values: Sequence[float]) -> float:
    return sum(after if after < before else after - before for before, after in pairwise(values))


def _passed_s(points: Sequence[tuple[float, float]]) -> float:
    # Two looks at the same moment would be a clock that stands.
    return max(points[-1][0] - points[0][0], 1e-9)
