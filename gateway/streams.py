"""What the gateway's long-lived streams have in common: loss, backoff, running their parts.

Used by the engine's and the detokenizer's stream. It knows no frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
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
        failures = _failures(done)
    finally:
        # When a stream breaks, several parts fail for the same reason; when we are cancelled,
        # nobody asks for any of it.
        _failures(tasks)
        await cancel_and_wait(*(task for task in tasks if not task.done()))
    for failure in failures:
        raise failure


async def expire(watchdog: Watchdog) -> None:
    """Fail when the peer was silent for too long."""
    silence_s = await watchdog.wait_expired()
    raise StreamLostError(f"no frame for {silence_s:.1f} s")


def check_columns(*columns: Sequence[object]) -> None:
    """Check that the columns of a frame are of one length.

    Raises:
        StreamLostError: They differ, so no row can be trusted.
    """
    if len({len(column) for column in columns}) != 1:
        raise StreamLostError("the columns of a frame differ in length")


def _failures(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException]:
    """Return what the tasks that have ended failed with, and mark it as seen."""
    ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    return [failure for failure in ended if failure is not None]
