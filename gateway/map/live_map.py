"""Keeps the last two minutes of every box and edge, and says how things stand.

`run` is one task of the gateway: a look every second, at what is there anyway. What is not seen any
more is forgotten after two minutes, so that all of it is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.map.boxes import Box, Edge, Seen
from gateway.map.diagnosis import diagnose
from gateway.map.finding import Finding
from gateway.map.history import INTERVAL_S, KEPT_S, History, Window
from gateway.map.reading import read_situation
from pagewire.kit.logs import get_logger

WINDOW_S = 6.0
"""What figures and diagnosis are about: three heartbeats, so that one that is late does no harm."""

log = get_logger("gateway.map")


@dataclass(frozen=True, slots=True)
class View:
    """How things stand at one moment; nothing in it changes, so any thread may read it."""

    boxes: Sequence[tuple[Box, Window, Window]] = ()
    """The gateway first; each with the last seconds, and all that is kept."""
    edges: Sequence[tuple[Edge, Window]] = ()

    def diagnose(self) -> Finding:
        """Return what limits the others."""
        if not self.boxes:
            return Finding("watching", "", "nothing has been seen yet")
        return diagnose(read_situation([(box, window) for box, window, _ in self.boxes]))


class LiveMap:
    """Used from the gateway's event loop."""

    def __init__(
        self,
        look: Callable[[], list[Seen]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin with nothing seen.

        Args:
            look: Returns what there is now, the gateway first.
            clock: Seconds, monotonic.
            sleep: Returns after so many seconds.
        """
        self._look = look
        self._clock = clock
        self._sleep = sleep
        self._now: list[Seen] = []
        self._histories: dict[str, History] = {}

    async def run(self) -> None:
        """Look every second until cancelled; a look that fails is logged and does no other harm."""
        has_failed = False
        while True:
            try:
                self.sample()
            except Exception as exc:
                if not has_failed:
                    log.error("map_sample_failed", exc_info=exc)
                has_failed = True
            await self._sleep(INTERVAL_S)

    def sample(self) -> None:
        """Look once."""
        now_s = self._clock()
        self._now = self._look()
        for seen in self._now:
            self._histories.setdefault(seen.what.id, History()).add(now_s, seen.values)
        for name in [n for n, each in self._histories.items() if each.last_s < now_s - KEPT_S]:
            del self._histories[name]

    def view(self) -> View:
        """Return how things stand."""
        since_s = self._clock() - WINDOW_S
        boxes, edges = list[tuple[Box, Window, Window]](), list[tuple[Edge, Window]]()
        for seen in self._now:
            history = self._histories[seen.what.id]
            if isinstance(seen.what, Box):
                boxes.append((seen.what, history.window(since_s), history.whole()))
            else:
                edges.append((seen.what, history.window(since_s)))
        return View(boxes, edges)
