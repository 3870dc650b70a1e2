"""The finished traces that are kept: the last ones, and the slowest of the last hour.

Bounded in number and in bytes. Used from one event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from gateway.trace.config import TraceConfig
from gateway.trace.request_trace import RequestTrace
from gateway.trace.slowest import SlowestTraces

MAX_BYTES = 64 * 1024 * 1024


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
        self._recent: deque[RequestTrace] = deque()
        self._recent_bytes = 0
        self._slowest = SlowestTraces(config.trace_slowest, max_bytes, clock)

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
        self._slowest.add(trace)

    def recent(self) -> list[RequestTrace]:
        """The newest first."""
        return list(reversed(self._recent))

    def slowest(self) -> list[RequestTrace]:
        """The slowest first."""
        return self._slowest.ordered()

    def find(
        self, request_id: str, may_read: Callable[[RequestTrace], bool] = lambda _: True
    ) -> RequestTrace | None:
        """Return the newest trace of that id; anybody may have used it, and more than once.

        Args:
            request_id: Of the client's choice.
            may_read: Which of them count.
        """
        kept = chain(reversed(self._recent), self._slowest.newest_first())
        found = (each for each in kept if each.request_id == request_id)
        return next(filter(may_read, found), None)
