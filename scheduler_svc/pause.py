"""Pausing the engine: what a pause stops.

`PauseMode` is what an administrator asks for, `PauseState` what `scheduler` goes by. A pause
outlives the call that asked for it, until a resume.
"""

from __future__ import annotations

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
