"""Which addresses there are: a list that stays, and DNS names that are looked up again and again.

`Membership` is sans-IO: it takes answers and says who is there. An address that one answer lacks
stays for another one; a name that can't be resolved keeps the addresses it had. `follow_members`
asks. It knows nothing of what listens at the addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pagewire.kit.dns import is_dns_target, resolve
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import TaskOwner

RESOLVE_INTERVAL_S = 5.0
MISSES_TO_LEAVE = 2
"""Answers in a row without an address, until it has left."""
MAX_ADDRESSES = 1024
"""Of one name; more are passed over."""

Resolve = Callable[[str], Awaitable[list[str]]]

log = get_logger("gateway.routing")


class Membership:
    """The addresses behind a list of targets, in a stable order."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = tuple(targets)
        self._misses: dict[str, dict[str, int]] = {name: {} for name in self.names}

    @property
    def names(self) -> list[str]:
        """The targets that must be resolved."""
        return [each for each in dict.fromkeys(self._targets) if is_dns_target(each)]

    @property
    def addresses(self) -> list[str]:
        """Who is there, each once."""
        known: dict[str, None] = {}
        for target in self._targets:
            known.update(dict.fromkeys(self._misses.get(target, (target,))))
        return list(known)

    def take(self, name: str, answer: Sequence[str]) -> None:
        """Take what a name resolved to; an answer without addresses counts as a miss of all."""
        found = dict.fromkeys(answer[:MAX_ADDRESSES])
        kept = {
            address: misses + 1
            for address, misses in self._misses[name].items()
            if address not in found and misses + 1 < MISSES_TO_LEAVE
        }
        self._misses[name] = dict.fromkeys(found, 0) | kept


async def follow_members(
    membership: Membership,
    on_addresses: Callable[[Sequence[str]], None],
    *,
    resolve: Resolve = resolve,
    interval_s: float = RESOLVE_INTERVAL_S,
) -> None:
    """Resolve each name every `interval_s` until cancelled, and tell who is there each time.

    One lookup of a name is under way at a time, however long it takes; no other name waits for it.
    With no names to resolve it tells all the same, so that its listener can tidy up.
    """

    async def follow(name: str | None) -> None:
        while True:
            if name is not None:
                await _ask(membership, name, resolve)
            on_addresses(membership.addresses)
            await asyncio.sleep(interval_s)

    async with TaskOwner() as tasks:
        names: list[str | None] = [*membership.names]
        for name in names or [None]:
            tasks.spawn(follow(name), name=f"members of {name or 'the list'}")
        await tasks.wait_failed()


async def _ask(membership: Membership, name: str, resolve: Resolve) -> None:
    try:
        membership.take(name, await resolve(name))
    except OSError as exc:
        # What was known may well still be there.
        log.info("name_not_resolved", name=name, reason=exc.strerror or str(exc))
