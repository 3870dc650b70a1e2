"""Pausing the engine: what a pause stops, and waiting until it has stopped.

`PauseState` is what the scheduler goes by; `PauseMode` is what an administrator asks for. A pause
outlives the call that asked for it, until a resume. Called by `engine_core`.
"""

from __future__ import annotations

import asyncio
from enum import Enum


class PauseState(Enum):
    """What `schedule` may plan."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "paused_new"
    """Running requests go on; nothing is admitted, preempted requests included."""
    PAUSED_ALL = "paused_all"
    """No tokens at all."""


class PauseMode(Enum):
    """What happens to requests in a pause. Those that come meanwhile wait in the queue."""

    ABORT = "abort"
    """All that are there end."""
    WAIT = "wait"
    """Running ones finish, waiting ones stay."""
    KEEP = "keep"
    """All stay where they are."""

    @property
    def state(self) -> PauseState:
        return PauseState.PAUSED_ALL if self is PauseMode.KEEP else PauseState.PAUSED_NEW


class QuietWaiter:
    """Lets callers wait until nothing of the engine moves in the pause that is on."""

    def __init__(self) -> None:
        self._quiet = asyncio.Event()

    def note(self, state: PauseState, *, num_running: int, num_steps_in_flight: int) -> None:
        """Take in how the engine stands, after each of its changes.

        A resume lets waiting callers go too: their pause is over.
        """
        is_quiet = num_steps_in_flight == 0 and (num_running == 0 or state is PauseState.PAUSED_ALL)
        if is_quiet or state is PauseState.UNPAUSED:
            self._quiet.set()
        else:
            self._quiet.clear()

    async def wait(self) -> None:
        """Wait for the last word of `note` to be that all is quiet; bounded by the caller."""
        await self._quiet.wait()
