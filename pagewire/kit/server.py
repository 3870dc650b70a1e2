"""A service's two gRPC servers and what surrounds them: health, reflection, metrics, drain.

Each service's composition root builds one `ServiceServer`. It listens on `listen` for peers and
clients and on `admin_listen` for administration; it does not know what the services do. Also here,
for one import: `shutdown_signal`, `exit_with_parent` of `pagewire.kit.lifecycle`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from pagewire.kit import lifecycle
from pagewire.kit.admin import AdminServicer
from pagewire.kit.channels import DEFAULT_MAX_MESSAGE_BYTES
from pagewire.kit.completion_wakeups import cheapen_wakeups
from pagewire.kit.health import HealthServicer
from pagewire.kit.interceptors import server_interceptors
from pagewire.kit.lifecycle import ShutdownSignal, exit_with_parent, shutdown_signal
from pagewire.kit.listener import Listener, Registrar, server_options
from pagewire.kit.logs import LogLevel, get_logger
from pagewire.kit.loop_lag import Lag, LoopLag
from pagewire.kit.metrics import MetricsServer, RpcMetrics, new_registry
from pagewire.kit.port_security import PortSecurity
from pagewire.kit.process_figures import ProcessSampler
from pagewire.kit.quiet import wait_quiet
from pagewire.kit.sockets import check_listen
from pagewire.kit.spans import check_endpoint
from pagewire.kit.tasks import cancel_and_wait
from pagewire.kit.tls import TlsConfig
from pagewire.v1 import admin_pb2_grpc

__all__ = [
    "Registrar",
    "ServerConfig",
    "ServiceServer",
    "ShutdownSignal",
    "exit_with_parent",
    "run",
    "shutdown_signal",
]

_ADMIN_MAX_MESSAGE_BYTES = 4 * 1024 * 1024

log = get_logger("pagewire.kit.server")


def run(main: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run a service as its whole process: `pagewire.kit.lifecycle.run`, with cheaper wake-ups."""
    cheapen_wakeups()
    return lifecycle.run(main)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where and how the service listens."""

    listen: str = "127.0.0.1:0"
    """Address of the gRPC server: host:port or unix:/path."""
    admin_listen: str | None = None
    """Address of the administration server: host:port or unix:/path; none: no such server."""
    metrics_port: int = 0
    """Port of Prometheus metrics over HTTP; 0: off."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics port is bound to."""
    drain_timeout_s: float = field(default=30.0, metadata={"flag": "--drain-timeout"})
    """Seconds that requests in flight get to finish after SIGTERM."""
    log_level: LogLevel = "info"
    """Least severe log lines that are written; SetLogLevel changes it while the service runs."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """Largest message that the server accepts."""
    max_connections: int | None = None
    """Most connections to `listen` at a time, more are closed; none: no limit."""
    otlp_traces_endpoint: str | None = None
    """Where OpenTelemetry spans of requests go, by OTLP over gRPC, such as http://localhost:4317;
    none: nowhere."""
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        check_endpoint(self.otlp_traces_endpoint)
        check_listen("listen", self.listen)
        if self.admin_listen is not None:
            check_listen("admin_listen", self.admin_listen)
        if not 0 <= self.metrics_port <= 65535:
            raise ValueError("metrics_port", self.metrics_port, "must be between 0 and 65535")
        if self.drain_timeout_s < 0:
            raise ValueError("drain_timeout_s", self.drain_timeout_s, "must not be negative")
        if self.max_message_bytes < 1024:
            raise ValueError("max_message_bytes", self.max_message_bytes, "must be at least 1024")
        if self.max_connections is not None and self.max_connections < 1:
            raise ValueError("max_connections", self.max_connections, "must be at least 1")


class ServiceServer:
    """The gRPC servers of one service. Belongs to one event loop.

    Order: build, `start` (alive, not serving), warm up, `set_serving(True)`; at the end
    `set_serving(False, "draining")`, finish what is in flight, `stop`.
    """

    def __init__(
        self,
        config: ServerConfig,
        service_name: str,
        register: Sequence[Registrar],
        register_admin: Sequence[Registrar] = (),
        *,
        callers: Sequence[str] = (),
        public: PortSecurity | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        registry: CollectorRegistry | None = None,
        rpc_metrics: RpcMetrics | None = None,
    ) -> None:
        """Prepare the servers.

        Args:
            config: Addresses and limits.
            service_name: Full name for the readiness check, such as pagewire.v1.SchedulerService.
            register: Functions that add servicers to the server of `listen`, for example
                `lambda server: add_XServicer_to_server(servicer, server)`.
            register_admin: The same for `admin_listen`, which has `AdminService` anyway.
            callers: Roles that may call `listen` when TLS is on and the configuration names nobody.
            public: How `listen` is secured where it is for the world and not for peers.
            interceptors: The service's own, run inside those of the kit, for calls to `listen`.
            registry: Metrics of the service; default: a new one with the process's figures.
            rpc_metrics: Of another server of the process, whose registry this one shares.
        """
        self.service_name = service_name
        self.registry = registry if registry is not None else new_registry()
        self._config = config
        self._health = HealthServicer()
        self._health.set(service_name, False, "starting")
        self._lag: LoopLag | None = None
        if rpc_metrics is None:
            self._lag = LoopLag()
            self.registry.register(self._lag)
        self.rpc_metrics = rpc_metrics or RpcMetrics(self.registry)
        self.process = ProcessSampler(
            self._lag.take if self._lag is not None else Lag,
            lambda: self.rpc_metrics.num_handled,
        )
        """What this process uses; the first server of a process looks."""
        common = server_interceptors(self.rpc_metrics)
        security = public or PortSecurity(config.tls.paths, config.tls.callers(callers))
        self._main = Listener(
            config.listen,
            register,
            [*common, *security.interceptors(config.listen), *interceptors],
            server_options(config.max_message_bytes, config.max_connections),
            security,
        )
        self._admin: Listener | None = None
        if config.admin_listen is not None:
            security = PortSecurity(config.tls.paths, config.tls.admin_callers())
            self._admin = Listener(
                config.admin_listen,
                [_register_admin, *register_admin],
                [*common, *security.interceptors(config.admin_listen)],
                server_options(_ADMIN_MAX_MESSAGE_BYTES, None),
                security,
            )
        self._metrics: MetricsServer | None = None
        self._serving: bool | None = None
        self._watches: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """The target under which clients reach the server, with the port that was bound."""
        return self._main.address

    @property
    def admin_address(self) -> str | None:
        return self._admin.address if self._admin is not None else None

    @property
    def metrics_port(self) -> int | None:
        return self._metrics.port if self._metrics is not None else None

    @property
    def is_serving(self) -> bool:
        return bool(self._serving)

    async def start(self) -> None:
        """Bind and start everything; liveness is SERVING, the service is not yet.

        Raises:
            FailedPreconditionError: An address cannot be had. What had started is stopped again.
        """
        try:
            for listener in filter(None, (self._main, self._admin)):
                await listener.start(self._health)
            if self._config.metrics_port:
                host, port = self._config.metrics_host, self._config.metrics_port
                self._metrics = MetricsServer.start(self.registry, host, port)
            if self._lag is not None:
                self._watches = [
                    asyncio.create_task(self._lag.watch(), name="loop-lag"),
                    asyncio.create_task(self.process.run(), name="process-figures"),
                ]
        except BaseException:
            await self.stop(0)
            raise
        log.info(
            "listening",
            name=self.service_name,
            address=self.address,
            admin_address=self.admin_address,
            metrics_port=self.metrics_port,
        )

    async def set_serving(self, serving: bool, reason: str = "") -> None:
        """Report readiness under the service's name, with the reason if it is not given."""
        self._health.set(self.service_name, serving, "" if serving else reason)
        if serving != self._serving:
            self._serving = serving
            log.info("serving" if serving else "not_serving", reason=reason)

    async def wait_quiet(self, last_s: Callable[[], float] = lambda: 0.0) -> None:
        """Wait a moment for calls that follow upon the last ones, to refuse them well.

        Args:
            last_s: When else something ended last that clients wait for, by the monotonic clock.
        """
        await wait_quiet(lambda: max(self.rpc_metrics.last_s, last_s()))

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop: not serving, no new calls, running ones get `grace_s`; idempotent.

        Args:
            grace_s: Seconds; default: `drain_timeout_s` of the configuration.
        """
        self._health.shut_down("stopping")
        self._serving = False
        await self._main.stop(self._config.drain_timeout_s if grace_s is None else grace_s)
        if self._admin is not None:
            await self._admin.stop(0)
        if self._metrics is not None:
            metrics, self._metrics = self._metrics, None
            await metrics.stop()
        watches, self._watches = self._watches, []
        await cancel_and_wait(*watches)


def _register_admin(server: grpc.aio.Server) -> None:
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(), server)
