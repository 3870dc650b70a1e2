"""Counting into buckets: Prometheus's bounds, equal values at once, and what is shown of it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Reference

from pagewire.kit.histogram import Histogram, one_two_five
from pagewire.kit.metric_families import histogram

BOUNDS = (0.1, 0.5, 1.0)
VALUES = (0.05, 0.1, 0.11, 0.5, 0.99, 1.0, 1.01, 40.0)


class Shown:
    """Registers one histogram as a collector does."""

    def __init__(self, told: Histogram) -> None:
        self._told = told

    def collect(self):
        told = self._told
        yield histogram("x", "X.", ("a",), [(("b",), told.bounds, told.counts, told.sum)])


def test_it_shows_what_the_library_s_own_shows() -> None:
    told, reference = Histogram(BOUNDS), CollectorRegistry()
    family = Reference("pagewire:x", "X.", ["a"], buckets=BOUNDS, registry=reference)
    for value in VALUES:
        told.observe(value)
        family.labels("b").observe(value)
    shown = CollectorRegistry()
    shown.register(Shown(told))

    def lines(registry: CollectorRegistry) -> set[str]:
        text = generate_latest(registry).decode().splitlines()
        return {line for line in text if "_created" not in line}

    assert lines(shown) == lines(reference)
    assert told.count == len(VALUES)


def test_many_of_one_value_count_as_many_single_ones() -> None:
    one_by_one, together = Histogram(BOUNDS), Histogram(BOUNDS)
    for _ in range(5):
        one_by_one.observe(0.25)
    together.observe_many(0.25, 5)
    assert (together.counts, together.sum) == (one_by_one.counts, one_by_one.sum)


@pytest.mark.parametrize(
    ("limit", "bounds"),
    [(1, [1]), (4, [1, 2]), (100, [1, 2, 5, 10, 20, 50, 100]), (0, [1])],
)
def test_bounds_of_sizes_rise_up_to_the_limit(limit: int, bounds: list[int]) -> None:
    assert one_two_five(limit) == bounds
