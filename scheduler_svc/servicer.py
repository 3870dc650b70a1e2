"""The gRPC handlers of the scheduler: thin, the work is elsewhere.

Errors are raised as `PagewireError`s; the interceptors of `pagewire.kit` make statuses of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any, NoReturn

import grpc

from pagewire.kit import context as request_context
from pagewire.kit.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    UnimplementedError,
)
from pagewire.kit.heartbeat import HEARTBEAT_INTERVAL_S
from pagewire.kit.pulse import ProcessFigures, no_figures
from pagewire.kit.spans import NO_SPANS, Spans
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_svc.convert.kv_events import (
    heartbeat_of_kv_events,
    kv_event_batch,
    kv_snapshot,
)
from scheduler_svc.convert.load import engine_info, load_message
from scheduler_svc.convert.outputs import generate_response
from scheduler_svc.convert.requests import core_request_of_generate, pause_mode, sleep_mode
from scheduler_svc.direct_client import DirectClient
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_streams import EngineStreams, SchedulerIdentity
from scheduler_svc.kv_sizing import describe_kv_cache

DEFAULT_LOAD_INTERVAL_S = 1.0
MIN_LOAD_INTERVAL_S = 0.05

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Requests in, tokens out."""

    def __init__(
        self,
        core: EngineCore,
        identity: SchedulerIdentity,
        process: Callable[[], ProcessFigures | None] = no_figures,
        spans: Spans = NO_SPANS,
    ) -> None:
        """Serve calls.

        Args:
            core: What they are for.
            identity: Of this process.
            process: Gives what heartbeats tell of it.
            spans: Where those of requests go.
        """
        self._core = core
        self._identity = identity
        self._streams = EngineStreams(core, identity, process, spans)

    async def GetEngineInfo(
        self, request: scheduler_pb2.GetEngineInfoRequest, context: Context
    ) -> scheduler_pb2.GetEngineInfoResponse:
        config, info = self._core.config, self._core.require_info()
        return engine_info(
            info,
            self._identity.scheduler_id,
            self._identity.epoch,
            names=config.served_model_names,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_logprobs=config.model.max_logprobs,
            cache_config=describe_kv_cache(config, info.facts, info.kv_cache),
        )

    # Written through the context: in grpc.aio that is the cheaper way down for many frames.
    async def EngineStream(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[scheduler_pb2.EngineStreamRequest],
        context: Context,
    ) -> None:
        # On its own: a call that ends while its first write is under way, which would carry the
        # metadata, can be given no status.
        await context.send_initial_metadata(())
        await self._streams.serve(aiter(request_iterator), context.write)

    async def Generate(
        self, request: scheduler_pb2.SchedulerServiceGenerateRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.SchedulerServiceGenerateResponse]:
        self._core.require_info()
        client = DirectClient(self._core)
        try:
            request_id = request.request_id or request_context.new_request_id()
            client.add(
                core_request_of_generate(
                    request, request_id, client.client_id, arrival_time_s=time.time()
                )
            )
            async for output in client.stream():
                yield generate_response(output)
        finally:
            client.close()

    async def WatchLoad(
        self, request: scheduler_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.WatchLoadResponse]:
        interval_s = max(request.interval_ms / 1000 or DEFAULT_LOAD_INTERVAL_S, MIN_LOAD_INTERVAL_S)
        sent: scheduler_pb2.WatchLoadResponse | None = None
        silent_s = 0.0
        while True:
            load = load_message(self._core)
            # Also without a change now and then: a scheduler that is stuck must not look idle.
            if load != sent or silent_s >= HEARTBEAT_INTERVAL_S:
                yield load
                sent, silent_s = load, 0.0
            pause_s = min(interval_s, HEARTBEAT_INTERVAL_S)
            await asyncio.sleep(pause_s)
            silent_s += pause_s

    async def SubscribeKvEvents(
        self, request: scheduler_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.SubscribeKvEventsResponse]:
        log, block_size = self._core.kv_events, self._core.require_info().kv_cache.block_size
        if log is None:
            raise FailedPreconditionError(
                "the engine keeps no KV events; start it with prefix caching and a"
                " --kv-events-buffer",
                reason="KV_EVENTS_OFF",
            )
        if request.snapshot and request.start_sequence:
            raise InvalidRequestError(
                "start_sequence: must be 0 with `snapshot`, which says where it ends",
                field="start_sequence",
            )
        hashes = self._core.cached_hashes() if request.snapshot else []
        through = log.next_sequence - 1
        start = through + 1 if request.snapshot else request.start_sequence
        async with log.follow(start, HEARTBEAT_INTERVAL_S) as batches:
            # Tells the subscriber that nothing from now on will be missed.
            await context.send_initial_metadata(())
            if request.snapshot:
                for part in kv_snapshot(hashes, through):
                    yield part
                del hashes
            heartbeats = count(1)
            async for batch in batches:
                yield (
                    heartbeat_of_kv_events(next(heartbeats))
                    if batch is None
                    else kv_event_batch(batch, block_size, hashes_only=request.hashes_only)
                )


class EngineAdminServicer(scheduler_pb2_grpc.EngineAdminServiceServicer):
    """Administration of the engine."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    async def ResetPrefixCache(
        self, request: scheduler_pb2.ResetPrefixCacheRequest, context: Context
    ) -> scheduler_pb2.ResetPrefixCacheResponse:
        reset = self._core.reset_prefix_cache(reset_running_requests=request.reset_running_requests)
        return scheduler_pb2.ResetPrefixCacheResponse(reset=reset)

    async def Pause(
        self, request: scheduler_pb2.PauseRequest, context: Context
    ) -> scheduler_pb2.PauseResponse:
        await self._core.pause(pause_mode(request.mode))
        return scheduler_pb2.PauseResponse()

    async def Resume(
        self, request: scheduler_pb2.ResumeRequest, context: Context
    ) -> scheduler_pb2.ResumeResponse:
        self._core.resume()
        return scheduler_pb2.ResumeResponse()

    async def Sleep(
        self, request: scheduler_pb2.SleepRequest, context: Context
    ) -> scheduler_pb2.SleepResponse:
        await self._core.sleep.sleep(request.level, sleep_mode(request.mode))
        return scheduler_pb2.SleepResponse()

    async def WakeUp(
        self, request: scheduler_pb2.WakeUpRequest, context: Context
    ) -> scheduler_pb2.WakeUpResponse:
        is_sleeping = await self._core.sleep.wake_up(list(request.tags))
        return scheduler_pb2.WakeUpResponse(is_sleeping=is_sleeping)

    async def LoadLora(
        self, request: scheduler_pb2.LoadLoraRequest, context: Context
    ) -> scheduler_pb2.LoadLoraResponse:
        _not_served("LoadLora")

    async def UnloadLora(
        self, request: scheduler_pb2.UnloadLoraRequest, context: Context
    ) -> scheduler_pb2.UnloadLoraResponse:
        _not_served("UnloadLora")


def _not_served(name: str) -> NoReturn:
    raise UnimplementedError(f"{name} is not served by this version", reason="NOT_SERVED_YET")
