"""Which replica a request goes to.

A router sees the request and the replicas as they are at its arrival; a prefix-aware one would look
at `shared_prefix_id` and remember where it went.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from scheduler_svc.simulate.trace import TraceRequest
from scheduler_svc.simulate.virtual_engine import VirtualEngine


class Router(Protocol):
    """Chooses a replica for every request."""

    def choose(self, request: TraceRequest, replicas: Sequence[VirtualEngine]) -> int:
        """Index of the replica that takes the request."""


class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._turns = count()

    def choose(self, request: TraceRequest, replicas: Sequence[VirtualEngine]) -> int:
        return next(self._turns) % len(replicas)
