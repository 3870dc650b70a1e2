"""Families of metrics that are read when somebody asks, named with our prefix.

For collectors whose figures are plain numbers elsewhere. All names of ours begin with `PREFIX`, as
vLLM's begin with its own; where both show the same thing the rest of the name is vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

PREFIX = "pagewire:"

Labels = Sequence[str]
Rows = Iterable[tuple[Labels, float]]


def gauge(name: str, text: str, labels: Labels, rows: Rows) -> Metric:
    """Return a gauge with a value for each row of label values."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def counter(name: str, text: str, labels: Labels, rows: Rows) -> Metric:
    """Return a counter with a value for each row; `_total` is added to its name."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def histogram(
    name: str,
    text: str,
    labels: Labels,
    rows: Iterable[tuple[Labels, Sequence[float], Sequence[int], float]],
) -> Metric:
    """Return a histogram.

    Args:
        name: Without our prefix.
        text: What it shows.
        labels: Names of the labels.
        rows: Label values, bounds, observations by bucket (one bucket more than bounds), and the
            sum of all observations.
    """
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, bounds, counts, total in rows:
        names = [*map(_bound_name, bounds), "+Inf"]
        buckets = list(zip(names, accumulate(counts), strict=True))
        family.add_metric(values, buckets, total)
    return family


def _bound_name(bound: float) -> str:
    name: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return name
