"""Counts calls to a peer: how many, how long they took, how many are under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CallCounter:
    """Used from one event loop."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.num_ended = 0
        self.num_in_flight = 0
        self.sum_ns = 0
        """How long those that have ended took together."""
        self._clock_ns = clock_ns

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens inside as one call, however it ends."""
        begin_ns = self._clock_ns()
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1
            self.num_ended += 1
            self.sum_ns += self._clock_ns() - begin_ns
