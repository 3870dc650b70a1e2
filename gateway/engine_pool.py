"""The schedulers of this gateway: which one a request goes to, and where it goes when one is lost.

The choice is the gateway's own; a sidecar only carries. The pool knows who is there and what they
serve; the rules of the choice are in `gateway.routing`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.engine_client import EngineClient, EngineInfo, EngineSettings, KvCacheInfo
from gateway.live_request import LiveRequest, TokenSink
from gateway.routing.membership import (
    RESOLVE_INTERVAL_S,
    Membership,
    Resolve,
    follow_members,
)
from gateway.routing.policies import PolicyName
from gateway.routing.prefix_match import PromptPrefix
from gateway.routing.replica import Replica
from gateway.routing.router import Router
from pagewire.kit.dns import resolve
from pagewire.kit.errors import NotBegunError, NotFoundError
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import TaskOwner, cancel_and_wait

log = get_logger("gateway.engine_pool")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients may know of a model."""

    created: int
    """Unix seconds at which this gateway came to know it."""
    max_model_len: int
    """In tokens."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How replicas are found and chosen."""

    routing_policy: PolicyName = "prefix-aware"
    leave_timeout_s: float = 3600.0
    """Longest that requests may still run on a replica that is no member any more."""
    resolve: Resolve = resolve
    """Asked for the addresses behind DNS names."""
    resolve_interval_s: float = RESOLVE_INTERVAL_S
    clock: Callable[[], float] = time.monotonic
    """Seconds, monotonic."""


class EnginePool:
    """All replicas. Used from one event loop; `run` owns every task."""

    def __init__(
        self,
        targets: Sequence[str],
        engine: EngineSettings,
        sink: TokenSink,
        on_change: Callable[[], None],
        settings: PoolSettings | None = None,
    ) -> None:
        self.models: dict[str, ServedModel] = {}
        """By served name, in the order in which we came to know them."""
        self._engine = engine
        self._sink = sink
        self._on_change = on_change
        self._settings = settings or PoolSettings()
        self.router = Router(self._settings.routing_policy)
        self._wants_prefixes = asyncio.Event()
        """Set once there is a choice: until then nobody need tell what is cached where."""
        self._membership = Membership(targets)
        self._replicas: dict[str, Replica] = {}
        self._tasks = TaskOwner()
        self._running: dict[str, asyncio.Task[None]] = {}
        for address in self._membership.addresses:
            self._join(address)

    @property
    def replicas(self) -> list[Replica]:
        """Those of now; from any thread."""
        return list(self._replicas.values())

    @property
    def clients(self) -> list[EngineClient]:
        return [replica.client for replica in self.replicas]

    def connected(self) -> list[tuple[str, str, int]]:
        """Model, label and longest sequence of each replica that has ever been connected.

        From any thread: replicas may join and leave meanwhile.
        """
        infos = [(client.engine, client.info) for client in self.clients]
        return [
            (info.served_model_names[0], engine, info.max_model_len)
            for engine, info in infos
            if info
        ]

    @property
    def ready(self) -> list[EngineClient]:
        """Those that take new requests."""
        return [replica.client for replica in self._replicas.values() if replica.takes_requests]

    def choose(self, model: str, tokenizer_fingerprint: str) -> tuple[EngineClient, EngineInfo]:
        """Return an engine whose limits a request for a model ("": the default) is held to.

        `dispatch` may send it to another one of the same limits, once its tokens are known.

        Args:
            model: A served name; "" is the one that we have known longest.
            tokenizer_fingerprint: Engines of another vocabulary are left out.

        Raises:
            NotFoundError: No engine has ever served that name.
            NotBegunError: None that serves it is ready.
        """
        name = model or next(iter(self.models), "")
        if self.models and name not in self.models:
            raise NotFoundError(
                f"The model `{model}` does not exist; this server has: {', '.join(self.models)}",
                reason="MODEL_NOT_FOUND",
                field="model",
            )
        candidates = [
            (client, info)
            for client in self.ready
            if (info := client.info) is not None
            and name in info.served_model_names
            and info.tokenizer_fingerprint == tokenizer_fingerprint
        ]
        if not candidates:
            raise NotBegunError(
                "no engine for this model is ready; try again soon",
                reason="ENGINE_NOT_READY",
                retry_after_s=1.0,
            )
        return min(candidates, key=lambda each: (each[0].is_recovering, each[0].num_requests))

    def dispatch(
        self, requests: Sequence[LiveRequest], engine: EngineClient, info: EngineInfo
    ) -> None:
        """Send the outputs of one prompt to the replica that suits them best.

        Args:
            requests: Of the same prompt; at least one.
            engine: Gets them if none is ready any more, and waits for its scheduler.
            info: What they were held to; only replicas that equal it are considered.
        """
        able = [
            replica
            for replica in self._replicas.values()
            if replica.takes_requests and replica.client.info == info
        ]
        if not able:
            for request in requests:
                engine.add(request)
            return
        first = requests[0].request
        prompt = PromptPrefix(first.prompt_token_ids, first.cache_salt)
        replica, num_matched = self.router.route(able, prompt)
        num_tokens = len(prompt.token_ids)
        for place, request in enumerate(requests):
            # Siblings share what the first one computes.
            replica.add(request, 1 if place else num_tokens - num_matched)

    async def run(self) -> None:
        """Keep connected to every replica, and follow who joins and leaves, until cancelled."""
        async with self._tasks:
            for replica in self.replicas:
                self._start(replica)
            self._tasks.spawn(
                follow_members(
                    self._membership,
                    self.set_addresses,
                    resolve=self._settings.resolve,
                    interval_s=self._settings.resolve_interval_s,
                ),
                name="members",
            )
            await self._tasks.wait_failed()

    async def close(self) -> None:
        """Take leave of all schedulers."""
        await asyncio.gather(*(client.close() for client in self.clients))

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Let replicas join and leave.

        One that leaves gets no new request and keeps those that it has, until they have ended or
        the time for it is over; one that comes back stays.
        """
        for address in addresses:
            replica = self._replicas.get(address)
            if replica is None:
                self._start(self._join(address))
            elif replica.leaves_at_s is not None:
                replica.leaves_at_s = None
                self._changed()
        now_s = self._settings.clock()
        for replica in self.replicas:
            if replica.target in addresses:
                continue
            if replica.leaves_at_s is None:
                log.info("replica_leaves", target=replica.target)
                replica.leaves_at_s = now_s + self._settings.leave_timeout_s
                self._changed()
            if not replica.client.num_requests or now_s >= replica.leaves_at_s:
                self._drop(replica)

    def _join(self, address: str) -> Replica:
        log.debug("replica_joins", target=address)
        replica = Replica(
            address,
            self._engine,
            self._sink,
            self._changed,
            self._rehome,
            is_reached=self._is_reached,
            wants_prefixes=self._wants_prefixes,
            clock=self._settings.clock,
            engine=self._free_engine(),
        )
        self._replicas[address] = replica
        if self.router.wants_prefixes and len(self._replicas) > 1:
            self._wants_prefixes.set()
        return replica

    def _free_engine(self) -> str:
        """The lowest number that no replica has: metrics stay bounded, whoever comes and goes."""
        taken = {replica.engine for replica in self._replicas.values()}
        return next(label for label in map(str, itertools.count()) if label not in taken)

    def _start(self, replica: Replica) -> None:
        name = f"engine {replica.target}"
        self._running[replica.target] = self._tasks.spawn(replica.client.run(), name=name)

    def _drop(self, replica: Replica) -> None:
        log.info("replica_left", target=replica.target)
        del self._replicas[replica.target]
        self.router.forget(replica.target)
        task = self._running.pop(replica.target)
        self._tasks.spawn(_end(replica.client, task), name=f"leave {replica.target}")
        self._changed()

    def _changed(self) -> None:
        for client in self.ready:
            if client.info is not None:
                self._note_models(client.info)
        self._on_change()

    def _is_reached(self, client: EngineClient, process: KvCacheInfo) -> bool:
        """Whether another client has a stream to this process: a name may have two addresses."""
        return process.epoch > 0 and any(
            other is not client
            and other.is_connected
            and other.info is not None
            and other.info.kv_cache == process
            for other in self.clients
        )

    def _note_models(self, info: EngineInfo) -> None:
        for name in info.served_model_names:
            known = self.models.get(name)
            created = known.created if known else int(time.time())
            self.models[name] = ServedModel(created, info.max_model_len)

    def _rehome(self, lost: EngineClient, request: LiveRequest) -> bool:
        """Give the request to another engine that makes the same tokens, if there is one."""
        if lost.info is None:
            return False
        fingerprint = lost.info.engine_fingerprint
        twins = [
            replica
            for replica in self._replicas.values()
            if replica.takes_requests
            and replica.client is not lost
            and not replica.client.is_recovering
            and replica.client.info is not None
            and replica.client.info.engine_fingerprint == fingerprint
        ]
        ready = [replica for replica in twins if replica.load.is_ready]
        # A pause lasts as long as it lasts: better than no engine, no better than one that is here.
        twins = ready if ready or lost.is_connected else twins
        if not twins:
            return False
        twins = [replica for replica in twins if replica.allows_requests] or twins
        # By load alone: many move at once, and what they had cached is gone with their engine.
        num_tokens = len(request.request.prompt_token_ids) + len(request.output_token_ids)
        min(twins, key=_load_of_twin).add(request, num_tokens)
        return True


def _load_of_twin(replica: Replica) -> int:
    return replica.load.num_requests(replica.client.num_requests)


async def _end(client: EngineClient, running: asyncio.Task[None]) -> None:
    await client.close()
    await cancel_and_wait(running)
    client.retire()
