"""Who claims a worker, and for which place in the replica."""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.engine_config import EngineConfig
from pagewire.kit.tls import PeerTls


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, and what the worker is to load."""

    config: EngineConfig
    scheduler_id: str
    epoch: int
    tls: PeerTls | None = None
    """None: workers are reached in plain text."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The worker's place in the replica."""

    rank: int = 0
    world_size: int = 1
    group_generation: int = 0
    rendezvous: str = ""
    """Where ranks meet; empty for rank 0."""
