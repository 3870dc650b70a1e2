"""What the map shows: boxes, the edges between them, and the names that they go by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.map.history import Values

GATEWAY_ID = "gateway"
CLIENTS_ID = "clients"


class Kind(StrEnum):
    """What a box is."""

    GATEWAY = "gateway"
    TOKENIZER = "tokenizer"
    SCHEDULER = "scheduler"
    WORKER = "worker"


class State(StrEnum):
    """How a box stands to the gateway."""

    READY = "ready"
    STANDBY = "standby"
    """There, and not in use: of several tokenizers one works at a time."""
    PAUSED = "paused"
    RECOVERING = "recovering"
    """A scheduler without its workers."""
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Box:
    """A process of the system, as the gateway sees it now."""

    id: str
    kind: Kind
    address: str
    """Where its peers reach it; empty: nowhere."""
    state: State
    replica: str | None = None
    """Label of the replica that it is part of."""
    machine: str = ""
    """The same for boxes that share cores; empty: not known."""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection between two boxes; messages flow both ways, counted are those that come back."""

    source: str
    target: str

    @property
    def id(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A box or an edge, and its figures at this moment."""

    what: Box | Edge
    values: Values
