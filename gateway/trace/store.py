"""The finished traces that are kept: the last ones, and the slowest of the last hour.

Bounded in number and in bytes. Used from one event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gateway.trace.config import TraceConfig
from gateway.trace.request_trace import RequestTrace

MAX_BYTES = 64 * 1024 * 1024
SLOW_FOR_S = 3600.0
"""How long a trace may be among the slowest."""


class TraceStore:
    """The last ones take at most `max_bytes`, unless it is one alone; so do the slowest."""

    def __init__(
        self,
        config: TraceConfig,
        *,
        max_bytes: int = MAX_BYTES // 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_on = config.trace_requests > 0
        self._config = config
        self._max_bytes = max_bytes
        self._clock = clock
        self._recent: deque[RequestTrace] = deque()
        self._recent_bytes = 0
        self._slowest: list[tuple[float, RequestTrace]] = []
        """With the time of each one's end, the slowest first."""

    def add(self, trace: RequestTrace) -> None:
        """Keep a trace, at the cost of the oldest."""
        if not self.is_on:
            return
        self._recent.append(trace)
        self._recent_bytes += trace.num_bytes
        while len(self._recent) > self._config.trace_requests or (
            self._recent_bytes > self._max_bytes and len(self._recent) > 1
        ):
            self._recent_bytes -= self._recent.popleft().num_bytes
        self._add_slow(trace)

    def recent(self) -> list[RequestTrace]:
        """The newest first."""
        return list(reversed(self._recent))

    def slowest(self) -> list[RequestTrace]:
        """The slowest first."""
        self._forget_old()
        return [trace for _, trace in self._slowest]

    def find(
        self, request_id: str, may_read: Callable[[RequestTrace], bool] = lambda _: True
    ) -> RequestTrace | None:
        """Return the newest trace of that id; anybody may have used it, and more than once.

        Args:
            request_id: Of the client's choice.
            may_read: Which of them count.
        """
        kept = (each for each in (*self.recent(), *self.slowest()) if each.request_id == request_id)
        return next(filter(may_read, kept), None)

    def _add_slow(self, trace: RequestTrace) -> None:
        self._forget_old()
        slowest, limit = self._slowest, self._config.trace_slowest
        if len(slowest) >= limit and (not limit or slowest[-1][1].duration_ns >= trace.duration_ns):
            return
        slowest.append((self._clock(), trace))
        slowest.sort(key=lambda each: -each[1].duration_ns)
        del slowest[limit:]
        while len(slowest) > 1 and sum(each.num_bytes for _, each in slowest) > self._max_bytes:
            slowest.pop()

    def _forget_old(self) -> None:
        since_s = self._clock() - SLOW_FOR_S
        if any(ended_s < since_s for ended_s, _ in self._slowest):
            self._slowest = [each for each in self._slowest if each[0] >= since_s]
