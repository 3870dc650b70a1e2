"""Composition root of the scheduler: puts engine, executor and servers together, and drains them.

Order at the start: listen (alive, not serving), claim a worker, serve. At the end: not serving,
drain the engine, stop the servers, end the loop, give the worker back.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pagewire.kit import garbage
from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.logs import configure_logging, get_logger
from pagewire.kit.server import ServiceServer, exit_with_parent, shutdown_signal
from pagewire.kit.spans import SpanInterceptor, open_spans
from pagewire.kit.tasks import TaskOwner, cancel_and_wait
from pagewire.v1 import scheduler_pb2_grpc
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.engine_core import EngineCore
from scheduler_svc.engine_state import EngineState
from scheduler_svc.engine_streams import SchedulerIdentity
from scheduler_svc.executor import Executor
from scheduler_svc.grammar_compiler import GrammarCompiler
from scheduler_svc.metrics import EngineCollector
from scheduler_svc.servicer import EngineAdminServicer, SchedulerServicer
from scheduler_svc.worker_client import GrpcExecutor
from scheduler_svc.worker_group import GroupExecutor

if TYPE_CHECKING:
    from scheduler_svc.vllm_engine.front_door import VllmFrontDoor

SERVICE_NAME = "pagewire.v1.SchedulerService"
STOP_GRACE_S = 1.0

log = get_logger("scheduler_svc.server")


class SchedulerServer:
    """One scheduler process without its signals. `start`, `run_until`, `stop`."""

    def __init__(
        self,
        config: SchedulerServiceConfig,
        executor: Executor | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        identity = SchedulerIdentity(
            f"{socket.gethostname()}-{secrets.token_hex(4)}", secrets.randbits(63)
        )
        self._config = config
        make_executor = GrpcExecutor if config.engine.parallel.world_size == 1 else GroupExecutor
        tls = config.server.tls
        self._executor = executor or make_executor(
            config.engine,
            config.workers,
            identity.scheduler_id,
            identity.epoch,
            tls.peer("worker"),
        )
        self._grammars = grammars or GrammarCompiler(
            config.engine.structured_outputs, config.tokenizers, tls.peer("tokenizer")
        )
        self.core = EngineCore(config.engine, self._executor, self._grammars)
        self.core.on_state = self._on_state
        self.spans = open_spans("scheduler", config.server.otlp_traces_endpoint)
        servicer = SchedulerServicer(
            self.core, identity, lambda: self.server.process.figures, self.spans
        )
        admin = EngineAdminServicer(self.core)
        self.server = ServiceServer(
            config.server,
            SERVICE_NAME,
            [lambda s: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, s)],
            [
                lambda s: scheduler_pb2_grpc.add_EngineAdminServiceServicer_to_server(admin, s),
            ],
            callers=("gateway",),
            interceptors=[SpanInterceptor(self.spans)],
        )
        self.server.registry.register(EngineCollector(self.core))
        self.vllm_engine = _vllm_front_door(config, self.core, self.server)
        self._engine: asyncio.Task[None] | None = None
        self._tasks = TaskOwner()
        self._states: asyncio.Queue[EngineState] = asyncio.Queue()
        self._is_stopping = False

    async def start(self) -> None:
        """Listen, and claim a worker in the background."""
        if self.vllm_engine is not None:
            self.vllm_engine.check()
        await self.server.start()
        self._engine = asyncio.create_task(self.core.run(), name="engine-core")
        self._tasks.spawn(self._report_readiness(), name="readiness")
        if self._config.engine.observability.log_stats_interval_s > 0:
            self._tasks.spawn(self._log_stats(), name="log-stats")

    async def run_until(self, shutdown: Coroutine[Any, Any, object]) -> None:
        """Work until `shutdown` returns.

        Raises:
            PagewireError: The first worker refuses the configuration.
            Exception: What a part of the scheduler failed with, which none should.
        """
        stop = asyncio.create_task(shutdown, name="shutdown")
        failed = asyncio.create_task(self._tasks.wait_failed(), name="a part's failure")
        parts = [failed] if self._engine is None else [failed, self._engine]
        try:
            await asyncio.wait((stop, *parts), return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            await cancel_and_wait(*(task for task in (stop, failed) if not task.done()))

    async def stop(self) -> None:
        """Drain, then end everything; idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        await self._set_serving(False, "draining")
        await self.core.drain(self._config.server.drain_timeout_s)
        await self.server.wait_quiet()
        if self.vllm_engine is not None:
            await self.vllm_engine.stop(STOP_GRACE_S)
        await self.server.stop(STOP_GRACE_S)
        if self._engine is not None and not self._engine.done():
            await cancel_and_wait(self._engine)
        await self._tasks.close()
        await self._grammars.close()
        await self.spans.close()
        await self._executor.close()

    def _on_state(self, state: EngineState) -> None:
        self._states.put_nowait(state)

    async def _report_readiness(self) -> None:
        while True:
            state = await self._states.get()
            if self._is_stopping:
                return
            reason = "" if state is EngineState.READY else "no worker is ready"
            await self._set_serving(state is EngineState.READY, reason)
            if state is EngineState.READY:
                # Once, when nobody waits for a token yet: blocks and modules live as long as the
                # process, so no collection need walk them.
                garbage.settle()

    async def _set_serving(self, serving: bool, reason: str) -> None:
        await self.server.set_serving(serving, reason)
        if self.vllm_engine is not None:
            await self.vllm_engine.set_serving(serving, reason)

    async def _log_stats(self) -> None:
        logged_steps = 0
        while True:
            await asyncio.sleep(self._config.engine.observability.log_stats_interval_s)
            stats, counters = self.core.make_stats(), self.core.counters
            if stats is None or counters.num_steps == logged_steps:
                continue
            logged_steps = counters.num_steps
            log.info(
                "engine_stats",
                num_requests_running=stats.num_requests_running,
                num_requests_waiting=stats.num_requests_waiting,
                kv_cache_usage=round(stats.kv_cache_usage, 4),
                num_preemptions=stats.num_preemptions,
                prefix_cache_hits=stats.prefix_cache_hits,
                prefix_cache_queries=stats.prefix_cache_queries,
                num_steps=counters.num_steps,
                generation_tokens=counters.generation_tokens,
                worker_idle_s=round(counters.worker_idle_ns / 1e9, 3),
            )


def _vllm_front_door(
    config: SchedulerServiceConfig, core: EngineCore, server: ServiceServer
) -> VllmFrontDoor | None:
    """The front door for `smg`, if it is asked for.

    Raises:
        FailedPreconditionError: The package that it needs is not installed.
    """
    if config.vllm_grpc_listen is None:
        return None
    if find_spec("smg_grpc_proto") is None:
        raise FailedPreconditionError(
            "--vllm-grpc-listen needs the package smg-grpc-proto:"
            " run `pip install 'pagewire[smg]'`",
            reason="MISSING_PACKAGE",
        )
    # Only now: it imports that package.
    from scheduler_svc.vllm_engine.front_door import VllmFrontDoor

    return VllmFrontDoor(
        core,
        config.vllm_grpc_listen,
        config.server,
        config.tokenizers,
        server,
        config.vllm_grpc_allowed_sans,
    )


async def serve(config: SchedulerServiceConfig) -> None:
    """Run the service until a signal has it drained.

    Raises:
        PagewireError: It can't listen, or the worker refuses the configuration.
    """
    configure_logging("scheduler", config.server.log_level)
    exit_with_parent()
    shutdown = shutdown_signal()
    server = SchedulerServer(config)
    try:
        await server.start()
        await server.run_until(shutdown.wait())
    finally:
        await server.stop()
