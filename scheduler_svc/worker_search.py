"""Claiming a worker for an engine, again and again until there is one.

It knows how long to wait between tries and when a failure is the end. What is claimed, and how, is
the executor's; what comes of it is `engine_core`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pagewire.kit.errors import PagewireError
from pagewire.kit.logs import get_logger
from scheduler_svc.executor import WorkerUnavailableError

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
# Enough for any wait; two to the power of thousands is no float.
_MAX_DOUBLINGS = 16

# The name that these lines have always had.
log = get_logger("scheduler_svc.engine_core")


async def claim_worker(
    claim: Callable[[], Awaitable[None]],
    *,
    num_failed_steps: int,
    is_first: bool,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Try until a worker is claimed; logs why not, once a reason.

    Args:
        claim: One try: raises `WorkerUnavailableError` if there is no worker, any other
            `PagewireError` if there is one that refused or does not fit.
        num_failed_steps: In a row, up to now: a worker that came back and was lost again before it
            did anything is not asked again at once.
        is_first: No worker has been claimed before, so one that refuses will always.
        sleep: Waits so many seconds.

    Raises:
        PagewireError: The first worker refused the configuration, or it does not fit.
    """
    if num_failed_steps > 0:
        num_doublings = min(num_failed_steps, _MAX_DOUBLINGS)
        await sleep(min(FIRST_BACKOFF_S * 2**num_doublings, MAX_BACKOFF_S))
    backoff_s, last_reason = FIRST_BACKOFF_S, ""
    while True:
        try:
            await claim()
            return
        except WorkerUnavailableError as error:
            reason = str(error)
        except PagewireError as error:
            if is_first:
                raise
            # It was fine with this configuration before, so it may be again.
            reason = error.message
        if reason != last_reason:
            log.warning("no_worker", reason=reason)
            last_reason = reason
        await sleep(backoff_s)
        backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
