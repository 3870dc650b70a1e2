"""How late an event loop comes to what is due: the sign of a loop that does too much at once.

A sleep is timed again and again; what it takes too long is lag that every request of the service
feels. It knows nothing of what the loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.kit.histogram import Histogram
from pagewire.kit.metric_families import histogram

INTERVAL_S = 0.5
_MAX_RECENT = 20
_LAG_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Lag:
    """How late an event loop was in a while, in nanoseconds."""

    max_ns: int = 0
    mean_ns: int = 0


class LoopLag(Collector):
    """The lag of one loop; `watch` runs on it."""

    def __init__(self) -> None:
        self._lag = Histogram(_LAG_S)
        self._recent_s: list[float] = []

    async def watch(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Time sleeps until cancelled.

        Args:
            clock: In seconds; default: the loop's own.
            sleep: Returns after so many seconds, or later.
        """
        clock = clock or asyncio.get_running_loop().time
        while True:
            due_s = clock() + INTERVAL_S
            await sleep(INTERVAL_S)
            lag_s = max(clock() - due_s, 0.0)
            self._lag.observe(lag_s)
            self._recent_s = [*self._recent_s[1 - _MAX_RECENT :], lag_s]

    def take(self) -> Lag:
        """Return the lag since this was asked last, as far as it is remembered."""
        recent_s, self._recent_s = self._recent_s, []
        if not recent_s:
            return Lag()
        mean_s = sum(recent_s) / len(recent_s)
        return Lag(int(max(recent_s) * 1e9), int(mean_s * 1e9))

    def collect(self) -> Iterator[Metric]:
        lag = self._lag
        yield histogram(
            "event_loop_lag_seconds",
            "How late the event loop came to a timer, twice a second.",
            (),
            [((), lag.bounds, list(lag.counts), lag.sum)],
        )
