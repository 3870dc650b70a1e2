"""The gateway's composition root: builds the parts, joins them, runs and drains them.

Order at the start: gRPC and HTTP ports open (alive, not ready), engines and tokenizer connect,
ready. At the end: not ready and new requests refused, running ones finish up to the drain timeout,
the rest ends with an error, streams close, ports close.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from functools import partial

from gateway.access.clients import Clients
from gateway.access.interceptor import AccessInterceptor
from gateway.access.metrics import ClientMetrics
from gateway.config import GatewayConfig
from gateway.detokenizer import Detokenizer
from gateway.engine_client import EngineSettings
from gateway.engine_pool import EnginePool, PoolSettings
from gateway.engine_stream import GatewayIdentity
from gateway.http.app import HttpSettings, build_app
from gateway.http.orca import named_load
from gateway.http.protocol import ConnectionLimits
from gateway.http.scope import guarded
from gateway.http.server import HttpServer
from gateway.map.live_map import LiveMap
from gateway.map.observer import Observer, Parts
from gateway.message_service import MessageService
from gateway.metrics import GatewayMetrics
from gateway.readiness import Readiness
from gateway.request_service import Backends, RequestService
from gateway.routing.metrics import ReplicaCollector
from gateway.servicer import InferenceServicer
from gateway.token_service import TokenService
from gateway.tokenizer_client import TokenizerClient
from gateway.trace.interceptor import TraceInterceptor
from gateway.trace.recorder import TraceRecorder
from pagewire.kit import garbage
from pagewire.kit.completion_wakeups import let_completions_gather
from pagewire.kit.logs import configure_logging, get_logger
from pagewire.kit.metrics import new_registry
from pagewire.kit.port_security import PortSecurity
from pagewire.kit.server import ServiceServer, exit_with_parent, shutdown_signal
from pagewire.kit.spans import open_spans
from pagewire.kit.tasks import TaskOwner, cancel_and_wait
from pagewire.v1 import inference_pb2_grpc

SERVICE_NAME = "pagewire.v1.InferenceService"

_EPOCH_BITS = 64
# Calls that are left only write their last words, which takes a busy machine its time.
_CLOSE_GRACE_S = 3.0

log = get_logger("gateway.server")


class GatewayServer:
    """The whole gateway on one event loop. `start`, then `stop`."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._owner = TaskOwner()
        registry = new_registry()
        metrics = self._metrics = GatewayMetrics(registry)
        self.readiness = Readiness()
        self._backends = self._build_backends()
        self._spans = open_spans("gateway", config.otlp_traces_endpoint)
        traces = self._traces = TraceRecorder(config.trace, self._spans)
        registry.register(ReplicaCollector(self._backends.engines))
        metrics.requests.connected = self._backends.engines.connected
        self.service = RequestService(
            self._backends,
            config.limits,
            config.timeouts,
            metrics,
            MessageService(config.messages, self._backends.tokenizer, metrics),
        )
        tokens = TokenService(
            self._backends.engines,
            self._backends.tokenizer,
            self.readiness,
            config.limits.max_prompt_bytes,
        )
        servicer = InferenceServicer(self.service, tokens)
        access = config.access
        clients = Clients(access.keys(), access.limits(), ClientMetrics(registry))
        clients.check_names(config.trace.trace_readers, "--trace-readers")
        self.grpc_server = ServiceServer(
            config.server_config(),
            SERVICE_NAME,
            register=[
                lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(
                    servicer, server
                )
            ],
            public=PortSecurity(config.ssl.paths, is_public=True),
            interceptors=[TraceInterceptor(traces), AccessInterceptor(clients)],
            registry=registry,
        )
        timeout_s = config.timeouts.body_timeout_s
        settings = HttpSettings(
            config.limits,
            timeout_s,
            config.timeouts.stream_keep_alive_s,
            config.enable_tokenizer_info_endpoint,
        )
        parts = Parts(
            self.service,
            self._backends.engines,
            self._backends.tokenizer,
            self.grpc_server.process.latest,
        )
        self.live_map = LiveMap(Observer(parts).look)
        routes = build_app(self.service, tokens, metrics, settings, traces, self.live_map)
        self.http_server = HttpServer(
            guarded(
                routes,
                clients,
                config.cors,
                metrics,
                partial(named_load, self._backends.engines),
                lambda: self.readiness.is_draining,
                traces,
            ),
            config.host,
            config.http_port,
            ConnectionLimits(
                config.limits.max_connections,
                config.limits.max_header_bytes,
                config.timeouts.header_timeout_s,
                config.timeouts.send_timeout_s,
            ),
            on_refused=metrics.http_refused,
            tls=config.ssl.paths,
        )

    async def start(self) -> None:
        """Open the ports and start to connect; readiness follows by itself.

        Raises:
            FailedPreconditionError: An address cannot be had.
        """
        await self.grpc_server.start()
        await self.http_server.start()
        self._owner.spawn(self.http_server.wait_ended(), name="http")
        self._owner.spawn(self._report_readiness(), name="readiness")
        self._owner.spawn(self._backends.tokenizer.run(), name="tokenizer")
        self._owner.spawn(self._backends.engines.run(), name="engines")
        self._owner.spawn(self.live_map.run(), name="map")
        self._owner.spawn(self._traces.exported.run(), name="spans")
        log.info("http_listening", host=self._config.host, port=self.http_server.port)

    async def wait_failed(self) -> None:
        """Wait until a part of the gateway fails, which none should, and raise its failure."""
        await self._owner.wait_failed()

    async def stop(self) -> None:
        """Drain and stop."""
        self.readiness.start_drain()
        self.http_server.end_connections()
        await self.grpc_server.set_serving(False, "draining")
        await self._finish_requests()
        await self.grpc_server.wait_quiet(self._last_end_s)
        await self.http_server.stop()
        await self.grpc_server.wait_quiet()  # the one before may have taken its time
        await self.grpc_server.stop(_CLOSE_GRACE_S)
        await self._backends.engines.close()
        await self._owner.close()
        await self._traces.exported.close()
        await self._spans.close()

    async def _finish_requests(self) -> None:
        """Wait for what runs, and end it when its time is over."""
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                await self.service.wait_idle()
        except TimeoutError:
            log.warning("drain_timeout")
            self.service.end_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_GRACE_S):
                    await self.service.wait_idle()

    def _last_end_s(self) -> float:
        """When a client heard the end of something last; a generation ends before its answer."""
        return max(self.service.last_end_s, self._metrics.last_http_s)

    def _build_backends(self) -> Backends:
        config, timeouts = self._config, self._config.timeouts
        detokenizer = Detokenizer(timeouts.recovery_timeout_s)
        identity = GatewayIdentity(
            config.gateway_id or f"gateway-{secrets.token_hex(8)}", secrets.randbits(_EPOCH_BITS)
        )
        settings = EngineSettings(
            identity,
            timeouts.connect_timeout_s,
            timeouts.recovery_timeout_s,
            use_model_defaults=config.generation_config == "auto",
            tls=config.tls.peer("scheduler"),
            traces=config.trace.trace_requests > 0 or config.otlp_traces_endpoint is not None,
        )
        on_change = self.readiness.changed.set
        pool = PoolSettings(config.routing_policy, timeouts.request_timeout_s)
        engines = EnginePool(config.schedulers, settings, detokenizer, on_change, pool)
        tokenizer = TokenizerClient(
            config.tokenizers,
            detokenizer,
            timeout_s=timeouts.tokenizer_timeout_s,
            connect_timeout_s=timeouts.connect_timeout_s,
            on_change=on_change,
            tls=config.tls.peer("tokenizer"),
        )
        self.readiness.watch(engines, tokenizer)
        return Backends(engines, tokenizer, detokenizer, self.readiness)

    async def _report_readiness(self) -> None:
        while True:
            reason = self.readiness.reason()
            await self.grpc_server.set_serving(not reason, reason)
            await self.readiness.changed.wait()
            self.readiness.changed.clear()


async def serve(config: GatewayConfig) -> int:
    """Run until the first SIGTERM or SIGINT; returns the exit code.

    Raises:
        Exception: What a part of the gateway failed with, after the rest was stopped.
    """
    configure_logging("gateway", config.log_level)
    exit_with_parent()
    shutdown = shutdown_signal()
    server = GatewayServer(config)
    try:
        await server.start()
        garbage.settle()
        # Nobody waits for it in a step; it writes more messages than all others together.
        let_completions_gather()
        failing = asyncio.create_task(server.wait_failed())
        waiting = asyncio.create_task(shutdown.wait())
        try:
            await asyncio.wait((failing, waiting), return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                await failing  # raises
        finally:
            await cancel_and_wait(*(task for task in (waiting, failing) if not task.done()))
    finally:
        await server.stop()
    return 0
