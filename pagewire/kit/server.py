"""A service's two gRPC servers and what surrounds them: health, reflection, metrics, drain.

Each service's composition root builds one `ServiceServer`. It listens on `listen` for peers and
clients and on `admin_listen` for administration; it does not know what the services do. Also here,
for one import: `run`, `shutdown_signal`, `exit_with_parent` of `pagewire.kit.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from pagewire.kit.admin import AdminServicer
from pagewire.kit.channels import DEFAULT_MAX_MESSAGE_BYTES
from pagewire.kit.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from pagewire.kit.health import HealthServicer
from pagewire.kit.interceptors import server_interceptors
from pagewire.kit.lifecycle import ShutdownSignal, exit_with_parent, run, shutdown_signal
from pagewire.kit.logs import LogLevel, get_logger
from pagewire.kit.metrics import MetricsServer, RpcMetrics, new_registry
from pagewire.kit.sockets import (
    SOCKET_FILES,
    cannot_listen,
    check_bindable,
    check_listen,
    unix_path,
    with_port,
)
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

Registrar = Callable[[grpc.aio.Server], None]

_ADMIN_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# By default a connection that says nothing is kept for two minutes.
_HANDSHAKE_TIMEOUT_MS = 20_000

log = get_logger("pagewire.kit.server")


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

    def __post_init__(self) -> None:
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
            interceptors: The service's own, run inside those of the kit, for calls to `listen`.
            registry: Metrics of the service; default: a new one with the process's figures.
            rpc_metrics: Of another server of the process, whose registry this one shares.
        """
        self.service_name = service_name
        self.registry = registry if registry is not None else new_registry()
        self._config = config
        self._health = HealthServicer()
        self._health.set(service_name, False, "starting")
        self.rpc_metrics = rpc_metrics or RpcMetrics(self.registry)
        common = server_interceptors(self.rpc_metrics)
        self._main = _Listener(
            config.listen,
            register,
            [*common, *interceptors],
            _options(config.max_message_bytes, config.max_connections),
        )
        self._admin: _Listener | None = None
        if config.admin_listen is not None:
            self._admin = _Listener(
                config.admin_listen,
                [_register_admin, *register_admin],
                common,
                _options(_ADMIN_MAX_MESSAGE_BYTES, None),
            )
        self._metrics: MetricsServer | None = None
        self._serving: bool | None = None

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


class _Listener:
    """One gRPC server on one address, with health and reflection beside its services."""

    def __init__(
        self,
        address: str,
        register: Sequence[Registrar],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, int]],
    ) -> None:
        self.address = address
        self._path = unix_path(address)
        self._register = register
        self._interceptors = interceptors
        self._options = options
        self._server: grpc.aio.Server | None = None

    async def start(self, health: HealthServicer) -> None:
        if self._path is not None:
            SOCKET_FILES.prepare(self._path)
        server = grpc.aio.server(interceptors=list(self._interceptors), options=list(self._options))
        collected = _Collected(server)
        for register in self._register:
            register(cast(grpc.aio.Server, collected))
        health_pb2_grpc.add_HealthServicer_to_server(health, server)  # type: ignore[no-untyped-call]
        names = [*collected.service_names, HEALTH_SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)  # type: ignore[no-untyped-call]
        self._bind(server)
        self._server = server
        await server.start()

    async def stop(self, grace_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
            if self._path is not None:
                SOCKET_FILES.remove(self._path)

    def _bind(self, server: grpc.aio.Server) -> None:
        if self._path is None:
            check_bindable(self.address)
        try:
            port = server.add_insecure_port(self.address)
        except RuntimeError:
            port = 0  # older versions of grpcio return 0
        if port == 0:
            raise cannot_listen(self.address, "it cannot be bound")
        if self._path is None:
            self.address = with_port(self.address, port)
        else:
            SOCKET_FILES.add(self._path)


class _Collected:
    """Stands for a server while services register, and notes their names for reflection."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.service_names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.service_names.append(service)
        self._server.add_registered_method_handlers(service, handlers)


def _register_admin(server: grpc.aio.Server) -> None:
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(), server)


def _options(max_message_bytes: int, max_connections: int | None) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Without this a second process silently shares the port.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Peers ping idle connections every 10 to 30 s; by default that ends in GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    return options
