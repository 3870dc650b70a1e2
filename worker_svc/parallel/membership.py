"""A rank's place in its replica: groups that its layers keep, in one generation after another.

Everything here runs on the device thread; the worker sees it as `group_member.Membership`.
"""

from __future__ import annotations

import threading

from torch._C._distributed_c10d import Store

from pagewire.engine_config import EngineConfig
from worker_svc.device import device_id
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.parallel.layout import RankLayout
from worker_svc.parallel.rendezvous import (
    Rendezvous,
    connect_store,
    open_store,
    wait_for_ranks,
)
from worker_svc.runners import make_runner
from worker_svc.step import Runner


class RankMembership:
    """One rank. `open` on rank 0, `join` on all, `leave`, and again."""

    def __init__(self, layout: RankLayout, host: str) -> None:
        self._groups = ParallelGroups(layout, host)
        self._host = host
        self._store: Store | None = None

    def open(self) -> str:
        """On rank 0: open the place where the others come; gives its address."""
        self.leave()
        self._store, rendezvous = open_store(self._host)
        return str(rendezvous)

    def join(self, rendezvous: str, cancelled: threading.Event) -> None:
        """Wait for the other ranks and connect to them.

        Args:
            rendezvous: What rank 0's `open` gave; not used on rank 0.
            cancelled: Ends the wait.

        Raises:
            PagewireError: They did not come.
        """
        layout = self._groups.layout
        if layout.rank > 0:
            self.leave()
            self._store = connect_store(Rendezvous.parse(rendezvous))
        if self._store is None:
            raise RuntimeError("rank 0 opens before it joins")
        wait_for_ranks(self._store, layout, cancelled, device_id(self._groups.device))
        self._groups.join(self._store)

    def leave(self) -> None:
        """Close all connections: ranks that wait for this one get an error. Idempotent."""
        self._groups.leave()
        self._store = None

    def make_runner(self, config: EngineConfig) -> Runner:
        """A runner of this rank's part of a model; it stays good over generations."""
        return make_runner(config, self._groups)
