"""What the gateway's long-lived streams have in common: loss, backoff, running their parts.

Used by the engine's and the detokenizer's stream. It knows no frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from pagewire.kit.heartbeat import Watchdog
from pagewire.kit.tasks import cancel_and_wait

SETTLED_AFTER_S = 3.0
"""A stream that lives this long has recovered."""

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0
_GIVE_UP_AGAIN_S = 0.5


class StreamLostError(Exception):
    """The peer is gone, silent, or does not keep to the protocol."""


class Backoff:
    """Waits that double up to a bound, until something worked."""

    def __init__(self) -> None:
        self._next_s = _FIRST_BACKOFF_S

    def reset(self) -> None:
        self._next_s = _FIRST_BACKOFF_S

    def next_s(self) -> float:
        """Return how long to wait this time; the next wait is twice as long, up to the bound."""
        delay_s, self._next_s = self._next_s, min(self._next_s * 2, _MAX_BACKOFF_S)
        return delay_s

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s())


class Recovery:
    """Bounds the time that requests wait for a stream, and spaces the tries to open one.

    A stream that breaks before it has settled may break on what we send: it gives the requests no
    new time, and the next try waits longer.
    """

    def __init__(self, timeout_s: float, on_give_up: Callable[[], None]) -> None:
        self.backoff = Backoff()
        self._timeout_s = timeout_s
        self._on_give_up = on_give_up
        self._give_up: asyncio.TimerHandle | None = None
        self._settle: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the time runs: a stream was lost, and none has settled since."""
        return self._give_up is not None

    def connected(self) -> None:
        """Note that there is a stream."""
        loop = asyncio.get_running_loop()
        self._settle = loop.call_later(SETTLED_AFTER_S, self._settled)

    def lost(self) -> None:
        """Note that there is no stream."""
        if self._settle is not None:
            self._settle.cancel()
            self._settle = None
        if self._give_up is None:
            self._wait(self._timeout_s)

    def close(self) -> None:
        """Let no time run any more; nobody waits for a stream."""
        for timer in (self._settle, self._give_up):
            if timer is not None:
                timer.cancel()
        self._settle = self._give_up = None

    def _settled(self) -> None:
        self.backoff.reset()
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _wait(self, delay_s: float) -> None:
        self._give_up = asyncio.get_running_loop().call_later(delay_s, self._expired)

    def _expired(self) -> None:
        if self._settle is not None:
            # There is a stream just now: either it settles, or requests are given up without it.
            self._wait(_GIVE_UP_AGAIN_S)
            return
        self._wait(self._timeout_s)  # for requests that come just before the next stream
        self._on_give_up()


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
    failure = failures[0] if failures else None
    # What is raised leads back to this frame, which must not lead to it.
    del tasks, done, failures
    try:
        if failure is not None:
            raise failure
    finally:
        del failure


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
