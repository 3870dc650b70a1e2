"""Heartbeats of long-lived streams: our own, because keepalive ends at the sidecar.

Each side of a stream sends a heartbeat frame every `HEARTBEAT_INTERVAL_S` from its event loop and
gives its peer up after `HEARTBEAT_TIMEOUT_S` without any frame, so a stopped process counts as
lost. It does not know the frames: the owner of the stream passes what sends one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

HEARTBEAT_INTERVAL_S = 2.0
HEARTBEAT_TIMEOUT_S = 10.0

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


async def send_heartbeats(
    send: Callable[[], Awaitable[None]],
    interval_s: float = HEARTBEAT_INTERVAL_S,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Call `send` every `interval_s` until cancelled or `send` raises."""
    while True:
        await sleep(interval_s)
        await send()


class Watchdog:
    """Expires when nobody calls `beat` for `timeout_s`. Owned by one task of one event loop."""

    def __init__(
        self,
        timeout_s: float = HEARTBEAT_TIMEOUT_S,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        if timeout_s <= 0:
            raise ValueError("timeout_s", timeout_s, "must be positive")
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._last_beat_s = clock()

    def beat(self) -> None:
        """Note that the peer is alive; call it for every frame that arrives."""
        self._last_beat_s = self._clock()

    @property
    def silence_s(self) -> float:
        """Seconds since the last beat."""
        return self._clock() - self._last_beat_s

    async def wait_expired(self) -> float:
        """Return the seconds of silence once they exceed the timeout.

        When this process itself was held (SIGSTOP, a blocked loop), the peer's frames may still
        wait in the socket: the peer then gets one more interval before it counts as lost.
        """
        while (remaining_s := self._timeout_s - self.silence_s) > 0:
            due_s = self._clock() + remaining_s
            await self._sleep(remaining_s)
            if self._clock() - due_s > HEARTBEAT_INTERVAL_S / 2:
                await self._sleep(HEARTBEAT_INTERVAL_S)
        return self.silence_s
