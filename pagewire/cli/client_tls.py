"""TLS of the commands that are clients of a gateway: the settings of the SDK, as flags.

Not those of the services' own mutual TLS, whose environment variables a machine may have set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from pagewire.kit.config import ConfigError
from pagewire.kit.tls import PeerTls

_TOGETHER_RULE = "--private-key and --certificate-chain go together"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS on the way to the gateway's gRPC API."""

    tls: bool = False
    """Encrypt, and check the gateway's certificate against well-known authorities."""
    root_certificates: Path | None = None
    """PEM file with the authorities to trust instead. It turns TLS on, as each one below does."""
    private_key: Path | None = None
    """PEM file with this client's own key, where the gateway wants a certificate."""
    certificate_chain: Path | None = None
    """PEM file with this client's own certificate, where the gateway wants one."""
    tls_server_name: str | None = None
    """Name in the gateway's certificate, where it is not that of its address."""

    def __post_init__(self) -> None:
        for name in ("private_key", "certificate_chain"):
            if (self.private_key is None) != (self.certificate_chain is None):
                raise ValueError(name, getattr(self, name), _TOGETHER_RULE)

    @property
    def is_on(self) -> bool:
        given = (self.root_certificates, self.private_key, self.tls_server_name)
        return self.tls or any(each is not None for each in given)

    def peer(self) -> PeerTls | None:
        """Return how a channel to the gateway is secured; None: in plain text.

        Raises:
            ConfigError: A file cannot be read.
        """
        if not self.is_on:
            return None
        credentials = grpc.ssl_channel_credentials(
            _read(self.root_certificates, "--root-certificates"),
            _read(self.private_key, "--private-key"),
            _read(self.certificate_chain, "--certificate-chain"),
        )
        return PeerTls(credentials, self.tls_server_name or "")


def _read(path: Path | None, flag: str) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{flag} {path}: {exc.strerror or exc}") from exc
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{flag} {path}: is no PEM file")
    return content
