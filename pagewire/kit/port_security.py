"""The server's side of TLS: a port's credentials, and which callers it lets in.

gRPC itself refuses who has no certificate of the authority. Whoever has one may ask for health;
everything else needs a name of the port's allow-list in it. Both kinds of refusals are logged, at
most a line a minute each: a stranger must not fill the logs.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc

from pagewire.kit.errors import PermissionDeniedError
from pagewire.kit.logs import get_logger
from pagewire.kit.pem import PemFiles, PemPaths, WatchedPems
from pagewire.kit.rpc_handlers import Context, Handler, wrap_handler
from pagewire.kit.sockets import unix_path

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"

ANY_NAME = "*"
"""In an allow-list: whoever the authority gave a certificate."""

_HEALTH_PREFIX = "/grpc.health.v1.Health/"
_QUIET_S = 60.0
# Connections between services last for hours, and one that was lost comes back within seconds.
_MANY_HANDSHAKES = 60
_MAX_LOGGED_NAMES = 8

log = get_logger("pagewire.kit.port_security")


@dataclass(frozen=True, slots=True)
class PortSecurity:
    """What one TCP port asks of those who connect; unix sockets ask nothing."""

    paths: PemPaths | None = None
    """Certificate and key of the port, and the authority of its callers; None: plain text."""
    callers: frozenset[str] | None = None
    """Names of which a caller's certificate must have one; None: whoever gets through TLS."""
    is_public: bool = False
    """The port is for the world, where plain text is an operator's choice."""

    def credentials(self, paths: PemPaths, address: str) -> grpc.ServerCredentials:
        """Return the port's credentials.

        With an authority in `paths`, callers must show a certificate. Files that are replaced are
        read again, so that certificates can be renewed while the service runs.

        Args:
            paths: Those of this object.
            address: Of the port, for the logs.

        Raises:
            ConfigError: A file cannot be used.
        """
        source = _Certificates(paths, _Handshakes(address))
        # Its stub does not know that None stands for no change.
        fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], source.changed)
        return grpc.dynamic_ssl_server_credentials(
            source.first, fetch, require_client_authentication=paths.ca is not None
        )

    def interceptors(self, address: str) -> list[grpc.aio.ServerInterceptor]:
        """Return what every call passes before a service's own interceptors."""
        if self.paths is None or self.callers is None or unix_path(address) is not None:
            return []
        return [CallerInterceptor(self.callers)]


class CallerInterceptor(grpc.aio.ServerInterceptor):
    """Lets in callers whose certificate has a name of the list."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self._quiet = QuietPeriod()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or ANY_NAME in self._allowed or method.startswith(_HEALTH_PREFIX):
            return handler
        return wrap_handler(handler, lambda context: self._checked(method, context))

    @asynccontextmanager
    async def _checked(self, method: str, context: Context) -> AsyncIterator[None]:
        names = caller_names(context)
        if self._allowed.isdisjoint(names):
            self._log(method, names)
            raise PermissionDeniedError(
                "the caller's certificate has no name that may call this service",
                reason="CALLER_NOT_ALLOWED",
            )
        yield

    def _log(self, method: str, names: list[str]) -> None:
        if (num_before := self._quiet.enter()) is not None:
            shown = names[:_MAX_LOGGED_NAMES]
            log.warning("caller_refused", method=method, names=shown, more_before=num_before)


def caller_names(context: Context) -> list[str]:
    """Return the DNS names and URIs in the caller's certificate."""
    found: Any = context.auth_context()
    dns_names = [name.decode("utf-8", "replace").lower() for name in found.get("peer_dns", ())]
    return dns_names + [uri.decode("utf-8", "replace") for uri in found.get("peer_uri", ())]


class QuietPeriod:
    """Lets through one event a minute, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = float("-inf")
        self._num_silent = 0

    def enter(self) -> int | None:
        """Return how many were silent before this one; None: this one is silent, too."""
        now_s = self._clock()
        if now_s < self._until_s:
            self._num_silent += 1
            return None
        self._until_s = now_s + _QUIET_S
        num_silent, self._num_silent = self._num_silent, 0
        return num_silent


class _Handshakes:
    """Counts handshakes, and says so when many come: gRPC does not tell which of them fail."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._since_s = time.monotonic()
        self._num = 0

    def add(self) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s > _QUIET_S:
            self._since_s, self._num = now_s, 0
        self._num += 1
        if self._num == _MANY_HANDSHAKES:
            hint = "somebody may be refused for the certificate that they show, or show none"
            log.warning("many_handshakes", address=self._address, count=self._num, hint=hint)


class _Certificates:
    """What a port shows. gRPC's threads ask at each handshake."""

    def __init__(self, paths: PemPaths, handshakes: _Handshakes) -> None:
        self._pems = WatchedPems(paths)
        self._handshakes = handshakes
        self._lock = threading.Lock()
        self.first = _configuration(self._pems.first)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what is new; None: nothing is."""
        with self._lock:
            self._handshakes.add()
        renewed = self._pems.changed()
        return None if renewed is None else _configuration(renewed)


def _configuration(pems: PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


def is_reachable_from_outside(address: str) -> bool:
    """Say whether a listen address is more than this machine's own."""
    if unix_path(address) is not None:
        return False
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
