"""What the map's tests are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.map.boxes import CLIENTS_ID, GATEWAY_ID, Box, Edge, Kind, Seen, State
from gateway.map.situation import EngineLoad, Situation

SCHEDULER, WORKER, TOKENIZER = "scheduler-0", "worker-0.0", "tokenizer-0"


def make_engine(**changes: Any) -> EngineLoad:
    """A replica that works at half its strength."""
    figures: dict[str, Any] = {
        "box": SCHEDULER,
        "worker": WORKER,
        "running": 4.0,
        "max_num_seqs": 64,
        "kv_usage": 0.3,
        "busy_share": 0.5,
        "forward_share": 0.9,
    }
    return EngineLoad(**figures | changes)


def make_situation(*engines: EngineLoad, **changes: Any) -> Situation:
    """A system that nothing limits."""
    figures: dict[str, Any] = {
        "num_samples": 6,
        "live": 4.0,
        "tokenizer": TOKENIZER,
        "engines": engines or (make_engine(),),
    }
    return Situation(**figures | changes)


def make_box(name: str, kind: Kind, state: State = State.READY, **more: Any) -> Box:
    return Box(name, kind, "127.0.0.1:1", state, **more)


def make_seen(values: Mapping[str, Mapping[str, float]] | None = None) -> Sequence[Seen]:
    """All boxes of a small system, with these figures by box or edge."""
    values = values or {}
    things: list[Box | Edge] = [
        make_box(GATEWAY_ID, Kind.GATEWAY),
        Edge(CLIENTS_ID, GATEWAY_ID),
        make_box(TOKENIZER, Kind.TOKENIZER),
        Edge(GATEWAY_ID, TOKENIZER),
        make_box(SCHEDULER, Kind.SCHEDULER, replica="0"),
        Edge(GATEWAY_ID, SCHEDULER),
        make_box(WORKER, Kind.WORKER, replica="0"),
        Edge(SCHEDULER, WORKER),
    ]
    return [Seen(thing, values.get(thing.id, {})) for thing in things]
