"""One replica as the router sees it: its engine client, load, cached prefixes and failures.

It follows the scheduler while its client is connected to it. Which replica a request goes to is
decided elsewhere, by `policies` through the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from gateway.engine_client import EngineClient, EngineInfo, EngineSettings, KvCacheInfo
from gateway.live_request import LiveRequest, TokenSink
from gateway.routing.circuit_breaker import CircuitBreaker
from gateway.routing.followers import follow_kv_events, follow_load
from gateway.routing.policies import Candidate
from gateway.routing.prefix_index import MAX_HASHES, PrefixIndex
from gateway.routing.replica_load import ReplicaLoad
from pagewire.kit.errors import InternalError, PagewireError, ServiceUnavailableError
from pagewire.kit.logs import get_logger
from pagewire.v1 import scheduler_pb2_grpc

UNANSWERED_S = 10.0
"""A request that was neither admitted nor refused for so long, to its deadline, is a failure."""

# An event loop's clock stands still for a turn, so its timers may ring a little before their time.
_CLOCK_SLACK_S = 0.1

# The replica goes away as it should.
_DRAINING = "DRAINING"

log = get_logger("gateway.routing")

Rehome = Callable[[EngineClient, LiveRequest], bool]


class Replica:
    """Used from one event loop; its `client.run` and what it follows are run by the pool."""

    def __init__(
        self,
        target: str,
        settings: EngineSettings,
        sink: TokenSink,
        on_change: Callable[[], None],
        rehome: Rehome,
        *,
        is_reached: Callable[[EngineClient, KvCacheInfo], bool],
        wants_prefixes: asyncio.Event,
        clock: Callable[[], float],
        engine: str = "0",
    ) -> None:
        """Begin with nothing known.

        Args:
            target: Address of the scheduler.
            settings: Of all engine clients.
            sink: Takes new tokens.
            on_change: Called when its readiness may have changed.
            rehome: Finds another engine for a request.
            is_reached: Whether another client has a stream to this process.
            wants_prefixes: Set once it matters what the replica has cached.
            clock: Seconds, monotonic.
            engine: What metrics call it.
        """
        self.client = EngineClient(
            target, settings, sink, on_change, rehome, self._follow, is_reached, engine
        )
        self.load = ReplicaLoad()
        self.index = PrefixIndex()
        self.breaker = CircuitBreaker()
        self.leaves_at_s: float | None = None
        """When it is dropped at the latest, once it is no member any more."""
        self._wants_prefixes = wants_prefixes
        self._clock = clock
        self._epoch: tuple[str, int] | None = None

    @property
    def target(self) -> str:
        return self.client.target

    @property
    def engine(self) -> str:
        """What metrics call it."""
        return self.client.engine

    @property
    def takes_requests(self) -> bool:
        """Whether new requests may go there, failures aside."""
        return self.client.is_ready and self.leaves_at_s is None

    @property
    def allows_requests(self) -> bool:
        """Whether its failures allow another one."""
        return self.breaker.allows(self._clock())

    def candidate(
        self,
        num_matched_tokens: int,
        num_requests_if_unknown: int,
        num_tokens_waiting_if_unknown: int = 0,
    ) -> Candidate:
        """Return its figures for a prompt.

        Args:
            num_matched_tokens: Leading tokens of the prompt that it has.
            num_requests_if_unknown: Taken for its load while it does not tell; there are never
                fewer than our own.
            num_tokens_waiting_if_unknown: Likewise.
        """
        num_requests = self.load.num_requests(self.client.num_requests)
        num_tokens_waiting = self.load.num_tokens_waiting
        if not self.load.is_known:
            num_requests = max(num_requests, num_requests_if_unknown)
            num_tokens_waiting = num_tokens_waiting_if_unknown
        return Candidate(
            self.target,
            num_requests,
            num_tokens_waiting,
            num_matched_tokens,
            self.load.is_ready and not self.client.is_recovering,
        )

    def add(self, request: LiveRequest, num_new_tokens: int) -> None:
        """Send a request and learn from what becomes of it.

        Args:
            request: Not admitted yet, or one that goes on.
            num_new_tokens: Of its prompt, not cached there.
        """
        now_s = self._clock()
        self.load.added(num_new_tokens)
        if not request.admission.done():
            self.breaker.sent(now_s)
        self.client.add(request)
        if not request.admission.done():
            is_unanswered_at_s = now_s + max(UNANSWERED_S, _left_s(request) - _CLOCK_SLACK_S)
            noted = partial(self._on_admission, request, is_unanswered_at_s)
            request.admission.add_done_callback(noted)

    def _on_admission(
        self, request: LiveRequest, is_unanswered_at_s: float, admission: asyncio.Future[None]
    ) -> None:
        if request.owner is not self.client:
            return  # it went on elsewhere
        now_s = self._clock()
        if admission.cancelled():
            if now_s >= is_unanswered_at_s:
                self._failed(now_s, "UNANSWERED")
            else:
                self.breaker.unanswered()  # a client that left says nothing of the replica
        elif (error := admission.exception()) is None or not _is_its_fault(error):
            self.breaker.succeeded()
        else:
            self._failed(now_s, error.reason if isinstance(error, PagewireError) else "")

    def _failed(self, now_s: float, reason: str) -> None:
        num_opens = self.breaker.num_opens
        self.breaker.failed(now_s)
        if self.breaker.num_opens > num_opens:
            log.warning("circuit_opened", target=self.target, reason=reason)

    def _follow(
        self, stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub, info: EngineInfo
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the stream that just connected."""
        kv = info.kv_cache
        if self._epoch != (kv.scheduler_id, kv.epoch):
            self._epoch = (kv.scheduler_id, kv.epoch)
            max_hashes = min(kv.num_blocks or MAX_HASHES, MAX_HASHES)
            self.index = PrefixIndex(kv.block_size, max_hashes)
        following = [follow_load(stub, self.load, lambda: self.client.num_requests)]
        if kv.block_size:
            following.append(self._follow_prefixes(stub, self.index))
        return following

    async def _follow_prefixes(
        self, stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub, index: PrefixIndex
    ) -> None:
        await self._wants_prefixes.wait()
        await follow_kv_events(stub, index)


def _left_s(request: LiveRequest) -> float:
    """Seconds to its deadline; without one it has no end."""
    deadline_ns = request.request.deadline_ns
    return (deadline_ns - time.time_ns()) / 1e9 if deadline_ns else float("inf")


def _is_its_fault(error: BaseException) -> bool:
    """Whether an error of an admission is the replica's, not the request's."""
    if isinstance(error, ServiceUnavailableError):
        return error.reason != _DRAINING
    return isinstance(error, InternalError) or not isinstance(error, PagewireError)
