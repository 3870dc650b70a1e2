"""One scheduler: connecting, the live requests it has, and what happens when it is lost.

`run` keeps a stream open for the life of the process. When it is lost, live requests go to another
engine with the same fingerprint (the pool's `rehome` says where), else they wait here and are
added again on reconnect, with their output so far; after `recovery_timeout_s` they end UNAVAILABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from gateway.engine_stream import EngineStream, GatewayIdentity
from gateway.generation import AbortReason
from gateway.live_request import LiveRequest, TokenSink
from gateway.streams import Recovery, StreamLostError, run_until_one_ends
from gateway.trace.step_ledger import NO_LEDGER, StepLedger
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import PagewireError, ServiceUnavailableError, from_rpc_error
from pagewire.kit.healthcheck import wait_for_start
from pagewire.kit.logs import get_logger
from pagewire.kit.tls import PeerTls
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from pagewire.wire import sampling_params_from_proto

_SCHEDULER_SERVICE = "pagewire.v1.SchedulerService"
# Another gateway has ours, and only an operator can mend that.
_ID_TAKEN = "GATEWAY_ID_TAKEN"

log = get_logger("gateway.engine_client")


@dataclass(frozen=True, slots=True)
class KvCacheInfo:
    """What is an engine's own, and no part of what it serves."""

    scheduler_id: str = ""
    epoch: int = 0
    """With the id: which process it is."""
    block_size: int = 0
    """Tokens in a KV block; 0: not said."""
    num_blocks: int = 0
    config: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Its settings and sizes by name, as text, for metrics."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves, as it said when we connected."""

    served_model_names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    default_sampling_params: SamplingParams
    engine_fingerprint: str
    tokenizer_fingerprint: str
    max_logprobs: int
    """Most candidates that a request may ask for, of a token."""
    kv_cache: KvCacheInfo = field(default=KvCacheInfo(), compare=False)
    """Engines are equal whatever it is: a request that suits one suits the other."""


Follow = Callable[
    ["scheduler_pb2_grpc.SchedulerServiceAsyncStub", EngineInfo],
    Iterable[Coroutine[Any, Any, None]],
]
"""Gives what runs beside a stream that has connected, and ends with it."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What all engine clients of a gateway share."""

    identity: GatewayIdentity
    connect_timeout_s: float
    recovery_timeout_s: float
    use_model_defaults: bool = True
    """Take the sampling defaults that the model's publisher recommends."""
    tls: PeerTls | None = None
    """None: engines are reached in plain text."""
    traces: bool = False
    """Follow where the time of requests goes."""


class EngineClient:
    """Implements `RequestOwner` and `StreamOwner`. Used from one loop; `run` is its only task.

    A live request is owned by one client: it is on its stream, or among its orphans while there is
    no stream that takes it.
    """

    def __init__(
        self,
        target: str,
        settings: EngineSettings,
        sink: TokenSink,
        on_change: Callable[[], None],
        rehome: Callable[[EngineClient, LiveRequest], bool],
        follow: Follow = lambda stub, info: (),
        is_reached: Callable[[EngineClient, KvCacheInfo], bool] = lambda client, process: False,
        engine: str = "0",
    ) -> None:
        self.target = target
        self.engine = engine
        """What metrics call it."""
        self.info: EngineInfo | None = None
        self._settings = settings
        self._sink = sink
        self._on_change = on_change
        self._rehome = rehome
        self._follow = follow
        self._is_reached = is_reached
        self._stream: EngineStream | None = None
        self._orphans: list[LiveRequest] = []
        self._generation = 0
        self._is_closed = False
        self._is_retired = False
        self._recovery = Recovery(settings.recovery_timeout_s, self._on_give_up)

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self._stream is not None and not self._stream.is_draining

    @property
    def stream(self) -> EngineStream | None:
        """None: it is not connected."""
        return self._stream

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    @property
    def is_recovering(self) -> bool:
        """Whether it has no worker just now: what goes there waits."""
        return self._stream is not None and self._stream.is_recovering

    @property
    def num_requests(self) -> int:
        """Requests that the engine has from us, or is to have."""
        on_stream = 0 if self._stream is None else self._stream.num_requests
        return on_stream + len(self._orphans)

    def add(self, request: LiveRequest) -> None:
        """Own the request and send it; its `admission` tells how that went."""
        request.owner = self
        request.record.added(self.engine)
        if self._stream is not None:
            self._send(self._stream, request)
            return
        self._orphans.append(request)
        if self._is_retired:  # it left while the request's tokens were made
            self.retire()

    def abort(self, request: LiveRequest, reason: AbortReason) -> None:
        if request in self._orphans:
            self._orphans.remove(request)
        elif self._stream is not None:
            self._stream.abort(request, reason)

    def on_draining(self) -> None:
        self._on_change()

    def on_recovering(self) -> None:
        """Move what waits for a worker to engines that have one, as far as there are any."""
        stream = self._stream
        if stream is None:
            return
        if stream.is_recovering:
            for request in stream.requests:
                if not self._rehome(self, request):
                    break  # nor would any other find one
                stream.abort(request, AbortReason.MOVED)
        self._on_change()

    def take_back(self, request: LiveRequest) -> None:
        """Find it another engine, or keep it until this one is back.

        The wait is bounded: the engine ends the stream at the end of its drain, and then the
        recovery timeout runs.
        """
        if not self._rehome(self, request):
            self._orphans.append(request)

    async def close(self) -> None:
        """Take leave of the scheduler; `run` ends by itself or is cancelled afterwards."""
        self._is_closed = True
        if self._stream is not None:
            await self._stream.say_goodbye()

    def retire(self) -> None:
        """Find what is left another engine, or end it: nobody runs this client any more.

        What is added later fares the same.
        """
        self._is_retired = True
        self._recovery.close()
        self._orphans = [each for each in self._orphans if not self._rehome(self, each)]
        self._fail_all("the engine has left", "ENGINE_LOST")

    async def run(self) -> None:
        """Keep connected until closed or cancelled."""
        while not self._is_closed:
            # A channel anew each time: one shows the certificate that it was opened with.
            async with open_channel(self.target, tls=self._settings.tls) as channel:
                try:
                    await self._serve_once(scheduler_pb2_grpc.SchedulerServiceStub(channel))
                except grpc.aio.AioRpcError as exc:
                    is_refused = from_rpc_error(exc).reason == _ID_TAKEN
                    self._on_lost(f"{exc.code().name}: {exc.details()}", is_refused=is_refused)
                except (StreamLostError, PagewireError) as exc:
                    self._on_lost(str(exc))
                except Exception as exc:
                    # A bug that one stream meets must not end the others, nor the process.
                    log.error("engine_stream_failed", target=self.target, exc_info=exc)
                    self._on_lost("internal error")
                # One that is still starting tells when it is done.
                delay_s = self._recovery.backoff.next_s()
                await wait_for_start(channel, _SCHEDULER_SERVICE, delay_s)

    async def _serve_once(self, stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub) -> None:
        ledger = StepLedger() if self._settings.traces else NO_LEDGER
        stream = EngineStream(stub, self._sink, self, ledger)
        timeout_s = self._settings.connect_timeout_s
        try:
            answer = await stub.GetEngineInfo(
                scheduler_pb2.GetEngineInfoRequest(), timeout=timeout_s
            )
            info = _engine_info(answer, self._settings)
            if self._is_reached(self, info.kv_cache):
                # Another stream of this gateway would end that one.
                raise StreamLostError("the engine is reached by another address already")
            self._generation += 1
            accepted = await stream.open(self._settings.identity, self._generation, timeout_s)
            if accepted.engine_fingerprint != answer.engine_fingerprint:
                raise StreamLostError("the engine changed while we connected")
            self._on_connected(stream, info)
            await run_until_one_ends(stream.run(), *self._follow(stub, info))
        finally:
            self._stream = None
            lost = stream.take_requests()
            for request in lost:
                request.trace.recovering()
            self._orphans += lost
            stream.cancel()

    def _on_connected(self, stream: EngineStream, info: EngineInfo) -> None:
        log.info("engine_connected", target=self.target, models=list(info.served_model_names))
        self._recovery.connected()
        if self.info is not None and self.info.engine_fingerprint != info.engine_fingerprint:
            self._fail_all("the engine came back with another model", "ENGINE_CHANGED")
        self.info, self._stream = info, stream
        orphans, self._orphans = self._orphans, []
        for request in orphans:
            self._send(stream, request)
        self.on_recovering()

    def _send(self, stream: EngineStream, request: LiveRequest) -> None:
        request.trace.joined(self.target)
        stream.add(request)

    def _on_lost(self, reason: str, *, is_refused: bool = False) -> None:
        if self._is_closed:
            return
        if not self._recovery.is_waiting:
            num_requests = len(self._orphans)
            # One that has not been there yet is starting, as this gateway is.
            tell = log.info if self.info is None and not is_refused else log.warning
            tell("engine_lost", target=self.target, reason=reason, num_requests=num_requests)
        else:
            log.debug("engine_still_lost", target=self.target, reason=reason)
        self._recovery.lost()
        self._orphans = [each for each in self._orphans if not self._rehome(self, each)]
        self._on_change()

    def _on_give_up(self) -> None:
        self._fail_all("the engine was lost and did not come back in time", "ENGINE_LOST")

    def _fail_all(self, message: str, reason: str) -> None:
        orphans, self._orphans = self._orphans, []
        for request in orphans:
            self._sink.forget(request)
            request.fail(ServiceUnavailableError(message, reason=reason))


def _engine_info(
    answer: scheduler_pb2.GetEngineInfoResponse, settings: EngineSettings
) -> EngineInfo:
    model = answer.model_info
    defaults = SamplingParams()
    if settings.use_model_defaults:
        defaults = sampling_params_from_proto(model.default_sampling_params)
    return EngineInfo(
        served_model_names=tuple(answer.served_model_names),
        max_model_len=answer.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(model.eos_token_ids),
        default_sampling_params=defaults,
        engine_fingerprint=answer.engine_fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        max_logprobs=answer.max_logprobs,
        kv_cache=KvCacheInfo(
            answer.scheduler_id,
            answer.epoch,
            answer.block_size,
            answer.num_gpu_blocks,
            dict(answer.cache_config),
        ),
    )
