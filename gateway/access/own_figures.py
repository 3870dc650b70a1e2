"""Metrics as one client may see them: without the figures of other clients.

By the label `client`, whichever metric has it, so that a metric that is added later is covered too.
Works where it is asked, in any thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

LABEL = "client"


class OwnFigures(Collector):
    """Shows what another collector has, but for series of clients that are not to be read."""

    def __init__(self, collector: Collector, may_read: Callable[[str], bool]) -> None:
        """Look at a collector.

        Args:
            collector: What there is.
            may_read: Whether the series of that client are shown; asked while they are collected.
        """
        self._collector = collector
        self._may_read = may_read

    def collect(self) -> Iterable[Metric]:
        return self._shown(self._collector.collect())

    def _shown(self, families: Iterable[Metric]) -> Iterator[Metric]:
        for family in families:
            if not any(LABEL in sample.labels for sample in family.samples):
                yield family
                continue
            shown = copy.copy(family)  # the collector may keep its own
            shown.samples = [
                sample
                for sample in family.samples
                if LABEL not in sample.labels or self._may_read(sample.labels[LABEL])
            ]
            yield shown
