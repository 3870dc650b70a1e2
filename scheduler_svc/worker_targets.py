"""The addresses of the workers that a scheduler may claim, behind the names that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagewire.kit.dns import is_dns_target, resolve
from pagewire.kit.logs import get_logger
from scheduler_svc.executor import WorkerUnavailableError

RESOLVE_TIMEOUT_S = 5.0
"""For the addresses of one name; a slow one holds up the claim of other workers for so long."""

# The name that these lines have always had.
log = get_logger("scheduler_svc.worker_client")


async def resolve_workers(targets: Sequence[str]) -> list[str]:
    """One address a worker: a DNS name stands for all addresses behind it.

    A claim is several calls to the same process, so a channel must not choose among addresses.
    Names are asked at the same time, each for `RESOLVE_TIMEOUT_S`.

    Raises:
        WorkerUnavailableError: Names can't be resolved now, and there is no other address.
    """
    found = await asyncio.gather(*map(_resolve_worker, targets))
    addresses = dict.fromkeys(address for answer in found for address in answer or ())
    unknown = [target for target, answer in zip(targets, found, strict=True) if answer is None]
    if unknown and not addresses:
        raise WorkerUnavailableError(f"{', '.join(unknown)} can't be resolved")
    return list(addresses)


async def _resolve_worker(target: str) -> list[str] | None:
    """Return the addresses of one target; None: it can't be resolved now."""
    if not is_dns_target(target):
        return [target]
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            return await resolve(target)
    except OSError as error:  # also of the time
        reason = error.strerror or str(error) or "no answer in time"
        log.info("name_not_resolved", name=target, reason=reason)
        return None
