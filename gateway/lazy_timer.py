"""A timer that is set again and again and hardly ever rings: for waits that end well in general."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls back once the time that was set last is over. Belongs to one event loop.

    Setting it is a comparison in general: the loop's timer stays armed for the earliest time that
    was set, looks at the latest one when it rings, and is armed again if that is still to come.
    """

    def __init__(self, on_due: Callable[[], object]) -> None:
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._rings_s = 0.0
        self._due_s: float | None = None

    def set(self, due_s: float) -> None:
        """Have the callback called at this time of the event loop, and at none that was set."""
        self._due_s = due_s
        if self._handle is None:
            self._arm(due_s)
        elif self._rings_s > due_s:
            self._handle.cancel()
            self._arm(due_s)

    def unset(self) -> None:
        """Have it not called."""
        self._due_s = None

    def close(self) -> None:
        """Let go of the event loop's timer, and of what it would call; idempotent.

        Whoever has a timer is called by it: a cycle, which only the garbage collector would free.
        """
        self._due_s = None
        self._on_due = _nothing
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, due_s: float) -> None:
        self._rings_s = due_s
        self._handle = self._loop.call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._handle = None
        if self._due_s is None:
            return
        if self._loop.time() < self._due_s:
            self._arm(self._due_s)
            return
        self._due_s = None
        self._on_due()


def _nothing() -> None:
    pass
