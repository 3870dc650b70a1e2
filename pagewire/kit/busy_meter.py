"""How long the threads of a pool have worked, read while they work.

The threads say when a piece of work begins and ends; whoever asks gets the sum so far, with what
is under way counted up to now. It knows no pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class BusyMeter:
    """Counts up; from any thread."""

    def __init__(self, num_threads: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Begin with nothing done.

        Args:
            num_threads: How many may work at once.
            clock_ns: Nanoseconds, monotonic.
        """
        self.num_threads = num_threads
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._done_ns = 0
        self._num_running = 0
        self._sum_of_begins_ns = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the time inside."""
        begin_ns = self._clock_ns()
        with self._lock:
            self._num_running += 1
            self._sum_of_begins_ns += begin_ns
        try:
            yield
        finally:
            end_ns = self._clock_ns()
            with self._lock:
                self._num_running -= 1
                self._sum_of_begins_ns -= begin_ns
                self._done_ns += end_ns - begin_ns

    def busy_ns(self) -> int:
        """Return how long the threads have worked, summed over them."""
        with self._lock:
            under_way_ns = self._num_running * self._clock_ns() - self._sum_of_begins_ns
            return self._done_ns + under_way_ns
