"""Waiting until an engine is still: without requests, without steps under way, or paused.

It knows how the engine stands only from what `engine_core` notes after each change.
"""

from __future__ import annotations

import asyncio

from pagewire.kit.logs import get_logger
from scheduler_svc.pause import PauseState
from scheduler_svc.quiet_waiter import QuietWaiter
from scheduler_svc.scheduler import Scheduler

# The name that these lines have always had.
log = get_logger("scheduler_svc.engine_core")


class Stillness:
    """Lets callers wait for three kinds of stillness; each wait is bounded by its caller."""

    def __init__(self) -> None:
        self._idle = asyncio.Event()
        self._settled = asyncio.Event()
        self._quiet = QuietWaiter()

    def note(self, scheduler: Scheduler, num_steps_in_flight: int) -> None:
        """Take in how the engine stands, after each of its changes."""
        if scheduler.has_requests:
            self._idle.clear()
        else:
            self._idle.set()
        if num_steps_in_flight or scheduler.has_work:
            self._settled.clear()
        else:
            self._settled.set()
        self._quiet.note(
            scheduler.pause_state,
            num_running=scheduler.num_running,
            num_steps_in_flight=num_steps_in_flight,
        )

    async def wait_idle(self) -> None:
        """Wait until there is no request."""
        await self._idle.wait()

    async def wait_settled(self) -> None:
        """Wait until, in a pause, no step is under way and the worker has heard of every end."""
        await self._settled.wait()

    async def wait_quiet(self) -> None:
        """Wait until a pause has taken hold, or is over."""
        await self._quiet.wait()


async def wait_drained(scheduler: Scheduler, stillness: Stillness, timeout_s: float) -> None:
    """Wait until no request is left or, in a pause, which keeps them, nothing moves.

    What is left after `timeout_s` is logged, and left to the caller.
    """
    log.info("draining", num_requests=scheduler.num_requests, timeout_s=timeout_s)
    is_paused = scheduler.pause_state is not PauseState.UNPAUSED
    try:
        async with asyncio.timeout(timeout_s):
            await (stillness.wait_quiet() if is_paused else stillness.wait_idle())
    except TimeoutError:
        log.warning("drain_timed_out", num_requests=scheduler.num_requests)
