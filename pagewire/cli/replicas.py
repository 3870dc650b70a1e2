"""Replicas of a stack that come up one after the other, and who is told of it.

The stack is ready with the first of them; the others are watched until they have been up once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagewire.cli.addresses import Addresses
from pagewire.cli.ready import SCHEDULER_SERVICE, count_serving, watch_serving
from pagewire.cli.stack_children import Child

_OF_REPLICAS = frozenset({"scheduler", "worker"})


class ReplicaWatch:
    """One object a stack. A replica is up once its scheduler serves."""

    def __init__(
        self,
        children: Sequence[Child],
        addresses: Addresses,
        mark_up: Callable[[Sequence[str]], None],
        say: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            children: Of the stack.
            addresses: Of the stack.
            mark_up: Takes the names of children that are up.
            say: Takes a line for the terminal.
        """
        schedulers = [child for child in children if child.service == "scheduler"]
        self._targets = [addresses.admin_listen[child.name] for child in schedulers]
        self._names = [
            [c.name for c in children if c.service in _OF_REPLICAS and c.replica == one.replica]
            for one in schedulers
        ]
        self._others = [child.name for child in children if child.service not in _OF_REPLICAS]
        self._mark_up = mark_up
        self._say = say
        self._num_up = 0

    async def begin(self) -> int:
        """Note that the gateway serves; return how many are up now: it has at least one."""
        self._mark_up(self._others)
        if len(self._targets) == 1:
            self._mark_up(self._names[0])
            return 1
        # However long a busy machine lets that one's answer wait.
        return max(1, await count_serving(self._targets, SCHEDULER_SERVICE))

    async def watch(self, num_told: int) -> None:
        """Wait until all have been up, and tell of each one.

        Args:
            num_told: How many the terminal was told of.
        """
        if len(self._targets) == 1:
            return

        def on_serving(place: int) -> None:
            self._num_up += 1
            self._mark_up(self._names[place])
            if self._num_up > num_told:
                self._say(f"pagewire: {self._num_up} of {len(self._targets)} replicas are up")

        await watch_serving(self._targets, SCHEDULER_SERVICE, on_serving)
