"""Looks at the gateway's own parts, and makes boxes and edges with figures of them.

What peers told came by heartbeats and load reports; this only reads what is there. It keeps
nothing but the tokenizers' numbers, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.engine_pool import EnginePool
from gateway.map.boxes import CLIENTS_ID, GATEWAY_ID, Box, Edge, Kind, Seen, State
from gateway.map.values import engine_values, process_values
from gateway.request_service import RequestService
from gateway.routing.replica import Replica
from gateway.tokenizer_client import TokenizerClient
from pagewire.kit.pulse import ProcessFigures, Pulse
from pagewire.v1.scheduler_pb2 import EngineFigures, WatchLoadResponse

BLOCKED_AFTER_S = 0.5
"""A write to a client that waits for so long waits for the client."""
MAX_BOXES = 512
"""More are not shown, and not kept."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the observer looks at."""

    service: RequestService
    engines: EnginePool
    tokenizer: TokenizerClient
    process: Callable[[], ProcessFigures | None]
    """Of the gateway itself."""


class Observer:
    """Used from the gateway's event loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tokenizer_numbers: dict[str, int] = {}

    def look(self) -> list[Seen]:
        """Return all boxes and edges as they are now, the gateway first."""
        seen = [*self._gateway(), *self._tokenizers()]
        for replica in self._parts.engines.replicas:
            seen += _replica(replica)
        return seen[: 2 * MAX_BOXES]

    def _gateway(self) -> Iterator[Seen]:
        service = self._parts.service
        generations = service.generations
        blocked = [each for each in generations if each.blocked_s >= BLOCKED_AFTER_S]
        values = {
            "live": float(len(generations)),
            "blocked": float(len(blocked)),
            "unread_bytes": float(sum(each.collector.num_bytes for each in generations)),
        }
        process = self._parts.process()
        state = State.DRAINING if service.readiness.is_draining else State.READY
        box = _box(GATEWAY_ID, Kind.GATEWAY, "", state, process)
        yield Seen(box, values | process_values(process))
        yield Seen(Edge(CLIENTS_ID, GATEWAY_ID), {"messages": float(service.num_requests)})

    def _tokenizers(self) -> Iterator[Seen]:
        client = self._parts.tokenizer
        known = [*client.addresses]
        if client.target and client.target not in known:
            known.append(client.target)
        self._number(known)
        for address in known:
            name = f"{Kind.TOKENIZER}-{self._tokenizer_numbers[address]}"
            is_in_use = address == client.target
            stream = client.stream if is_in_use else None
            process = None if stream is None else stream.pulse.peer
            box = _box(name, Kind.TOKENIZER, address, _tokenizer_state(client, address), process)
            if not is_in_use:
                yield Seen(box, {})
                continue
            calls = client.calls
            values = {
                "in_flight": float(calls.num_in_flight),
                "calls": float(calls.num_ended),
                "calls_ns": float(calls.sum_ns),
            }
            yield Seen(box, values | process_values(process))
            if stream is not None:
                num_messages = stream.num_frames + calls.num_ended
                yield Seen(Edge(GATEWAY_ID, name), _edge_values(num_messages, stream.pulse))

    def _number(self, addresses: Sequence[str]) -> None:
        """Give each address a number that it keeps while it is there."""
        kept = {each: n for each, n in self._tokenizer_numbers.items() if each in addresses}
        free = (n for n in range(2 * len(addresses)) if n not in kept.values())
        self._tokenizer_numbers = kept | {
            each: next(free) for each in addresses if each not in kept
        }


def _tokenizer_state(client: TokenizerClient, address: str) -> State:
    if not client.is_ready:
        return State.LOST  # all of them, which are tried in turn
    return State.READY if address == client.target else State.STANDBY


def _replica(replica: Replica) -> Iterator[Seen]:
    load, stream, name = replica.load.message, replica.client.stream, scheduler_id(replica.engine)
    process = None if stream is None else stream.pulse.peer
    state = _state(replica, load)
    box = _box(name, Kind.SCHEDULER, replica.target, state, process, replica.engine)
    values = {} if load is None else engine_values(load)
    yield Seen(box, values | process_values(process))
    if stream is not None:
        tokens = {"tokens": float(stream.num_tokens)}
        edge = Edge(GATEWAY_ID, name)
        yield Seen(edge, _edge_values(stream.num_frames, stream.pulse) | tokens)
        if load is not None:
            yield from _workers(replica, load.figures, load.num_steps)


def _workers(replica: Replica, figures: EngineFigures, num_steps: int) -> Iterator[Seen]:
    source = scheduler_id(replica.engine)
    for worker in figures.workers:
        name = worker_id(replica.engine, worker.rank)
        box = _box(name, Kind.WORKER, worker.address, State.READY, worker.process, replica.engine)
        yield Seen(box, process_values(worker.process))
        values = {"messages": float(num_steps)}
        if worker.round_trip_ns:
            values["round_trip_ns"] = float(worker.round_trip_ns)
        yield Seen(Edge(source, name), values)


def scheduler_id(engine: str) -> str:
    return f"{Kind.SCHEDULER}-{engine}"


def worker_id(engine: str, rank: int) -> str:
    return f"{Kind.WORKER}-{engine}.{rank}"


def _box(
    name: str,
    kind: Kind,
    address: str,
    state: State,
    process: ProcessFigures | None,
    replica: str | None = None,
) -> Box:
    machine, version = ("", "") if process is None else (process.machine, process.version)
    return Box(name, kind, address, state, replica, machine, version)


def _state(replica: Replica, load: WatchLoadResponse | None) -> State:
    client = replica.client
    if not client.is_connected:
        return State.LOST
    if not client.is_ready or replica.leaves_at_s is not None:
        return State.DRAINING
    if client.is_recovering:
        return State.RECOVERING
    return State.PAUSED if load is not None and load.figures.paused else State.READY


def _edge_values(num_messages: int, pulse: Pulse) -> dict[str, float]:
    values = {"messages": float(num_messages)}
    if pulse.round_trip_ns:
        values["round_trip_ns"] = float(pulse.round_trip_ns)
    return values
