"""Waiting until a pause has taken hold: nothing of the engine moves any more.

It knows how the engine stands only from what `engine_core` notes after each change.
"""

from __future__ import annotations

import asyncio

from scheduler_svc.pause import PauseState


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
