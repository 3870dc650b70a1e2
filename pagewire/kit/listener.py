"""One gRPC server on one address: bound, secured, with health and reflection beside its services.

`pagewire.kit.server` puts two of them together for a service; this knows of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pagewire.kit.health import SERVICE_NAME as HEALTH_SERVICE_NAME
from pagewire.kit.health import HealthServicer
from pagewire.kit.logs import get_logger
from pagewire.kit.port_security import PortSecurity, is_reachable_from_outside
from pagewire.kit.sockets import (
    SOCKET_FILES,
    cannot_listen,
    check_bindable,
    unix_path,
    with_port,
)
from pagewire.kit.steady_server import make_server

Registrar = Callable[[grpc.aio.Server], None]

# By default a connection that says nothing is kept for two minutes.
_HANDSHAKE_TIMEOUT_MS = 20_000

log = get_logger("pagewire.kit.listener")


class Listener:
    """One gRPC server on one address, with health and reflection beside its services."""

    def __init__(
        self,
        address: str,
        register: Sequence[Registrar],
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        options: Sequence[tuple[str, int]],
        security: PortSecurity,
    ) -> None:
        self.address = address
        self._security = security
        self._path = unix_path(address)
        self._register = register
        self._interceptors = interceptors
        self._options = options
        self._server: grpc.aio.Server | None = None

    async def start(self, health: HealthServicer) -> None:
        """Bind and serve.

        Raises:
            FailedPreconditionError: The address cannot be had.
            ConfigError: A certificate cannot be used.
        """
        if self._path is not None:
            SOCKET_FILES.prepare(self._path)
        server = make_server(self._interceptors, self._options)
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
        """Stop; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
            if self._path is not None:
                SOCKET_FILES.remove(self._path)

    def _bind(self, server: grpc.aio.Server) -> None:
        if self._path is None:
            check_bindable(self.address)
        try:
            port = self._add_port(server)
        except RuntimeError:
            port = 0  # older versions of grpcio return 0
        if port == 0:
            raise cannot_listen(self.address, "it cannot be bound")
        if self._path is None:
            self.address = with_port(self.address, port)
        else:
            SOCKET_FILES.add(self._path)

    def _add_port(self, server: grpc.aio.Server) -> int:
        if self._path is None and self._security.paths is not None:
            credentials = self._security.credentials(self._security.paths, self.address)
            return server.add_secure_port(self.address, credentials)
        if not self._security.is_public and is_reachable_from_outside(self.address):
            hint = "set --tls-cert, --tls-key and --tls-ca unless a mesh encrypts the connections"
            log.warning("plain_text_port", address=self.address, hint=hint)
        return server.add_insecure_port(self.address)


class _Collected:
    """Stands for a server while services register, and notes their names for reflection."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.service_names: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Generated code gives each method twice; a server of ours asks for the registered ones."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.service_names.append(service)
        self._server.add_registered_method_handlers(service, handlers)


def server_options(max_message_bytes: int, max_connections: int | None) -> list[tuple[str, int]]:
    """Return the channel arguments of a port with these limits."""
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Without this a second process silently shares the port.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # By default pings end in GOAWAY: those of an idle connection every 10 to 30 s, and those of
        # a peer that was held up for a while and reads what came meanwhile in one go.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_TIMEOUT_MS),
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    return options
