"""The gRPC handlers of `VllmEngine`: thin, the work is elsewhere.

Errors are raised as `PagewireError`s; the interceptors of `pagewire.kit` make statuses of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

from pagewire.kit import context as request_context
from pagewire.kit.errors import FailedPreconditionError, InvalidRequestError, UnimplementedError
from pagewire.kit.heartbeat import HEARTBEAT_INTERVAL_S
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.pause import PauseState
from scheduler_svc.vllm_engine import convert
from scheduler_svc.vllm_engine.generation import Generation, LiveGenerations
from scheduler_svc.vllm_engine.parameters import generate_parameters
from scheduler_svc.vllm_engine.tokenizer_bundle import TokenizerBundle
from scheduler_svc.vocabulary import Vocabulary

MAX_FLUSH_TIMEOUT_S = 600.0
FLUSH_RETRY_S = 0.1

Context = grpc.aio.ServicerContext[Any, Any]


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Token ids in, token ids out. Belongs to one event loop."""

    def __init__(
        self, core: EngineCore, tokenizer: TokenizerBundle, is_serving: Callable[[], bool]
    ) -> None:
        """Serve an engine.

        Args:
            core: The engine.
            tokenizer: Where callers get their tokenizer from.
            is_serving: Whether new requests are welcome.
        """
        self.vocabulary: Vocabulary | None = None
        """To find stop strings by; None until there is one."""
        self._core = core
        self._tokenizer = tokenizer
        self._is_serving = is_serving
        self._live = LiveGenerations()
        self._started_s = time.monotonic()
        self._last_receive_time_s = 0.0

    async def Generate(
        self, request: vllm_engine_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]:
        config, info = self._core.config, self._core.require_info()
        self._last_receive_time_s = time.time()
        parameters = generate_parameters(
            request,
            max_model_len=info.kv_cache.max_model_len,
            max_logprobs=config.model.max_logprobs,
        )
        request_id = request.request_id or request_context.new_request_id()
        generation = Generation(
            self._core, request_id, parameters, self.vocabulary, self._last_receive_time_s
        )
        try:
            with self._live.hold(request_id, generation):
                generation.add()
                async for message in generation.messages(stream=request.stream):
                    yield message
        finally:
            generation.close()

    async def Abort(
        self, request: vllm_engine_pb2.AbortRequest, context: Context
    ) -> vllm_engine_pb2.AbortResponse:
        self._live.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    async def Embed(
        self, request: vllm_engine_pb2.EmbedRequest, context: Context
    ) -> vllm_engine_pb2.EmbedResponse:
        raise UnimplementedError("this engine makes no embeddings", reason="NOT_SERVED")

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: Context
    ) -> vllm_engine_pb2.HealthCheckResponse:
        is_healthy = self._is_serving()
        return vllm_engine_pb2.HealthCheckResponse(
            healthy=is_healthy, message="" if is_healthy else "the engine takes no requests now"
        )

    async def GetModelInfo(
        self, request: vllm_engine_pb2.GetModelInfoRequest, context: Context
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        return convert.model_info(self._core.config, self._core.require_info())

    async def GetServerInfo(
        self, request: vllm_engine_pb2.GetServerInfoRequest, context: Context
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        return convert.server_info(
            self._core.config,
            self._core.require_info(),
            self._core.make_stats(),
            is_paused=self._core.pause_state is not PauseState.UNPAUSED,
            uptime_s=time.monotonic() - self._started_s,
            last_receive_time_s=self._last_receive_time_s,
        )

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, context: Context
    ) -> vllm_engine_pb2.GetLoadsResponse:
        block_size = self._core.require_info().kv_cache.block_size
        max_num_seqs = self._core.config.scheduler.max_num_seqs
        stats, loads = self._core.make_stats(), []
        # There is one rank, 0.
        if stats is not None and request.dp_rank == 0:
            loads.append(
                convert.scheduler_load(stats, block_size=block_size, max_num_seqs=max_num_seqs)
            )
        return vllm_engine_pb2.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version("pagewire"),
            dp_rank_count=len(loads),
            loads=loads,
        )

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        fingerprint = self._core.require_info().facts.model_info.tokenizer_fingerprint
        async for chunk in self._tokenizer.chunks(fingerprint):
            yield chunk

    async def SubscribeKvEvents(
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common_pb2.KvEventBatch]:
        log, block_size = self._core.kv_events, self._core.require_info().kv_cache.block_size
        if log is None:
            raise UnimplementedError(
                "the engine keeps no KV events; start it with prefix caching and a"
                " --kv-events-buffer",
                reason="KV_EVENTS_OFF",
            )
        start = request.start_sequence_number
        # Callers wait for a first sign of life, and the first batch may come much later.
        await context.send_initial_metadata(())
        while True:
            try:
                async with log.follow(start, HEARTBEAT_INTERVAL_S) as batches:
                    async for batch in batches:
                        if batch is not None:
                            yield convert.kv_event_batch(batch, block_size, time.time())
            except FailedPreconditionError as error:
                # This caller has no way to be told that but in the stream itself.
                start = int(error.metadata["resume_from"])
                yield convert.kv_events_lost(start, time.time())

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        if not 0 <= request.timeout_s <= MAX_FLUSH_TIMEOUT_S:
            raise InvalidRequestError(
                f"timeout_s: must be between 0 and {MAX_FLUSH_TIMEOUT_S:g}", field="timeout_s"
            )
        ends_s = time.monotonic() + request.timeout_s
        while not (reset := self._core.reset_prefix_cache(reset_running_requests=False)):
            if time.monotonic() >= ends_s:
                break
            await asyncio.sleep(FLUSH_RETRY_S)
        return common_pb2.FlushCacheResponse(
            success=reset, message="" if reset else "requests hold blocks of the cache"
        )

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        raise UnimplementedError("profiles are not served here", reason="NOT_SERVED")

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: Context
    ) -> common_pb2.ProfileResponse:
        raise UnimplementedError("profiles are not served here", reason="NOT_SERVED")
