"""Mutual TLS between services: the settings, the names of the roles, and the client's side.

Each service has one certificate and shows it in both directions. It is known by its role
(`scheduler`, or `scheduler.DOMAIN` with `--tls-domain`), not by its address, which may be that of
a pod. Unix sockets stay plain: the folder that they are in guards them. The server's side, and
who may call what, is `pagewire.kit.port_security`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from pagewire.kit.pem import PemFiles, PemPaths, WatchedPems

_TOGETHER_RULE = "--tls-cert, --tls-key and --tls-ca go together"
_FLAGS = ("--tls-cert", "--tls-key", "--tls-ca")
NEEDS_TLS_RULE = "restricts nobody in plain text; set --tls-cert, --tls-key and --tls-ca as well"
"""Of an allow-list that is given where no certificates are."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """How a channel to another service is secured."""

    credentials: grpc.ChannelCredentials
    """As they were at first."""
    server_name: str
    """Which the other side's certificate must have; empty: that of its address."""
    renewed: Callable[[], grpc.ChannelCredentials] | None = None
    """Gives those of now; None: they stay."""

    def current(self) -> grpc.ChannelCredentials:
        """Return what a channel that is opened now needs. Reads the files if they were replaced."""
        return self.credentials if self.renewed is None else self.renewed()


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Who this process is to services that speak mutual TLS."""

    cert: Path | None = field(default=None, metadata={"flag": "--tls-cert"})
    """PEM file with this service's certificate, and those between it and the authority. With it
    both sides of every connection between services show one. The names in it (SANs) must have the
    service's role: gateway, tokenizer, scheduler or worker."""
    key: Path | None = field(default=None, metadata={"flag": "--tls-key"})
    """PEM file with the private key of --tls-cert, without a passphrase."""
    ca: Path | None = field(default=None, metadata={"flag": "--tls-ca"})
    """PEM file with the authority whose certificates are accepted: one for this system alone."""
    domain: str = field(default="", metadata={"flag": "--tls-domain"})
    """What follows the roles in certificates: scheduler.DOMAIN in place of scheduler."""

    def __post_init__(self) -> None:
        for name in ("cert", "key", "ca"):
            if self.is_on and getattr(self, name) is None:
                raise ValueError(name, getattr(self, name), _TOGETHER_RULE)

    @property
    def is_on(self) -> bool:
        return any(path is not None for path in (self.cert, self.key, self.ca))

    @property
    def paths(self) -> PemPaths | None:
        """The three files; None without TLS."""
        if self.cert is None or self.key is None or self.ca is None:
            return None
        return PemPaths(self.cert, self.key, self.ca, _FLAGS)

    def name_of(self, role: str) -> str:
        """Return the name that the certificate of a role has."""
        return f"{role}.{self.domain}" if self.domain else role

    def peer(self, role: str) -> PeerTls | None:
        """Return what a channel to services of this role needs; None: plain text.

        Raises:
            ConfigError: A file cannot be used.
        """
        return self.server(self.name_of(role))

    def server(self, name: str) -> PeerTls | None:
        """Return what a channel to a server whose certificate has the name needs; see `peer`."""
        if self.paths is None:
            return None
        shown = _ClientCertificates(WatchedPems(self.paths))
        return PeerTls(shown.current(), name, shown.current)


class _ClientCertificates:
    """What channels show; gRPC takes it at the opening of a channel, and only then."""

    def __init__(self, pems: WatchedPems) -> None:
        self._pems = pems
        self._credentials = _channel_credentials(pems.first)

    def current(self) -> grpc.ChannelCredentials:
        if (renewed := self._pems.changed()) is not None:
            self._credentials = _channel_credentials(renewed)
        return self._credentials


def _channel_credentials(pems: PemFiles) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)


@dataclass(frozen=True, slots=True)
class TlsConfig(TlsIdentity):
    """Mutual TLS between services."""

    allowed_sans: tuple[str, ...] = field(default=(), metadata={"flag": "--tls-allowed-sans"})
    """Names (whole DNS names or URIs) in the certificates of those who may call this service; `*`:
    all that the authority knows. Default: the roles that need to call it."""
    admin_allowed_sans: tuple[str, ...] = field(
        default=(), metadata={"flag": "--tls-admin-allowed-sans"}
    )
    """The same for the administration port. Default: the role admin."""

    def __post_init__(self) -> None:
        TlsIdentity.__post_init__(self)  # super() does not know a class with slots
        for name in ("allowed_sans", "admin_allowed_sans"):
            if getattr(self, name) and not self.is_on:
                raise ValueError(name, ",".join(getattr(self, name)), NEEDS_TLS_RULE)

    def callers(self, roles: Sequence[str]) -> frozenset[str]:
        """Return the names that may call: those of the configuration, else those of the roles."""
        return _names(self.allowed_sans or [self.name_of(role) for role in roles])

    def admin_callers(self) -> frozenset[str]:
        """Return the names that may call the administration port."""
        return _names(self.admin_allowed_sans or [self.name_of("admin")])


def _names(sans: Sequence[str]) -> frozenset[str]:
    """Return names as they are compared: case counts in URIs, not in DNS names."""
    return frozenset(san if "://" in san else san.lower() for san in sans)
