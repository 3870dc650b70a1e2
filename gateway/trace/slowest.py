"""The slowest of the traces that ended within the last hour, bounded in number and in bytes.

A request that ends pays for its own place, not for all that are kept: which one goes next is known
by a heap, which one is the oldest by the order in which they came. Knows nothing of what a trace
holds besides its duration and its size. Used from one event loop.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator

from gateway.trace.request_trace import RequestTrace

SLOW_FOR_S = 3600.0
"""How long a trace may be among the slowest."""

_MIN_HEAP = 64
"""Below it, places in the heap of traces that have grown old are not worth to be cleared."""


class SlowestTraces:
    """Invariant: each kept trace has one place in the heap, which has at most as many others."""

    def __init__(self, limit: int, max_bytes: int, clock: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            limit: Most traces.
            max_bytes: What they take at most, unless it is one alone.
            clock: Seconds, monotonic.
        """
        self._limit = limit
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: OrderedDict[int, tuple[float, RequestTrace]] = OrderedDict()
        """By number, the oldest first; with the time of each one's end."""
        self._fastest_first: list[tuple[int, int]] = []
        """A heap of (nanoseconds, number); some numbers are of traces that have grown old."""
        self._num_bytes = 0
        self._num_added = 0

    def add(self, trace: RequestTrace) -> None:
        """Keep a trace that is closed if it is one of the slowest, at the cost of the fastest."""
        self._forget_old()
        if not self._limit or (len(self._kept) >= self._limit and not self._is_slower(trace)):
            return
        number = self._num_added
        self._num_added += 1
        self._kept[number] = self._clock(), trace
        self._num_bytes += trace.num_bytes
        heapq.heappush(self._fastest_first, (trace.duration_ns, number))
        while len(self._kept) > self._limit or (
            self._num_bytes > self._max_bytes and len(self._kept) > 1
        ):
            self._forget(self._fastest())
        if len(self._fastest_first) > max(2 * len(self._kept), _MIN_HEAP):
            self._fastest_first = [each for each in self._fastest_first if each[1] in self._kept]
            heapq.heapify(self._fastest_first)

    def ordered(self) -> list[RequestTrace]:
        """The slowest first; of two that took as long, the one that ended first."""
        self._forget_old()
        traces = [trace for _, trace in self._kept.values()]
        return sorted(traces, key=lambda trace: -trace.duration_ns)

    def newest_first(self) -> Iterator[RequestTrace]:
        """In the order in which they ended, the last one first."""
        self._forget_old()
        return (trace for _, trace in reversed(self._kept.values()))

    def _is_slower(self, trace: RequestTrace) -> bool:
        """Whether it is slower than the fastest one that is kept, of which there is one."""
        return trace.duration_ns > self._kept[self._fastest()][1].duration_ns

    def _fastest(self) -> int:
        """Return the number of the fastest one that is kept, of which there is one."""
        while self._fastest_first[0][1] not in self._kept:
            heapq.heappop(self._fastest_first)
        return self._fastest_first[0][1]

    def _forget(self, number: int) -> None:
        _, trace = self._kept.pop(number)
        self._num_bytes -= trace.num_bytes

    def _forget_old(self) -> None:
        since_s = self._clock() - SLOW_FOR_S
        while self._kept and next(iter(self._kept.values()))[0] < since_s:
            self._forget(next(iter(self._kept)))
