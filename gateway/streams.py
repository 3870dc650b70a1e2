"""What the gateway's long-lived streams have in common: loss, backoff, running their parts.

Used by the engine's and the detokenizer's stream. It knows no frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pagewire.kit.heartbeat import Watchdog
from pagewire.kit.tasks import cancel_and_wait

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0


class StreamLostError(Exception):
    """The peer is gone, silent, or does not keep to the protocol."""


class Backoff:
    """Waits that double up to a bound, until something worked."""

    def __init__(self) -> None:
        self._next_s = _FIRST_BACKOFF_S

    def reset(self) -> None:
        self._next_s = _FIRST_BACKOFF_S

    async def wait(self) -> None:
        delay_s, self._next_s = self._next_s, min(self._next_s * 2, _MAX_BACKOFF_S)
        await asyncio.sleep(delay_s)


async def run_until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts of a stream; when one ends or fails, end the others and raise its failure."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failures = [task.exception() for task in done if not task.cancelled()]
    finally:
        await _end_quietly(tasks)
    for failure in failures:
        if failure is not None:
            raise failure


async def expire(watchdog: Watchdog) -> None:
    """Fail when the peer was silent for too long."""
    silence_s = await watchdog.wait_expired()
    raise StreamLostError(f"no frame for {silence_s:.1f} s")


async def _end_quietly(tasks: list[asyncio.Task[None]]) -> None:
    """End the parts; when a stream breaks, several of them fail for the same reason."""
    await cancel_and_wait(*(task for task in tasks if not task.done()))
