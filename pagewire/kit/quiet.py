"""Waiting for calls that follow upon the last ones, before a server stops.

Whoever has got its answer may ask for more at once. A call that arrives as a server stops ends
CANCELLED by gRPC (1.85), without a word of ours and without its handler; before that, the handler
can tell the client to go elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

QUIET_S = 0.2
MAX_WAIT_S = 2.0


async def wait_quiet(
    last_s: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Wait until nothing has happened for `QUIET_S`, at most for `MAX_WAIT_S`.

    Args:
        last_s: When something happened last, by the clock; it may change while this waits.
        clock: Gives seconds.
        sleep: Waits for seconds.
    """
    until_s = clock() + MAX_WAIT_S
    while True:
        left_s = min(last_s() + QUIET_S, until_s) - clock()
        if left_s <= 0:
            return
        await sleep(left_s)
