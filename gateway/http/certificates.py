"""The certificate of the HTTP port: what a handshake shows is what is in the files at its time."""

from __future__ import annotations

import ssl
from typing import Any

from pagewire.kit.config import ConfigError
from pagewire.kit.logs import get_logger
from pagewire.kit.pem import PemPaths, WatchedPems

log = get_logger("gateway.http.certificates")


class RenewedCertificate:
    """Gives the context to listen with, which hands each handshake over to the newest files'."""

    def __init__(self, paths: PemPaths) -> None:
        """Read the files for the first time.

        Args:
            paths: With authorities, clients must show a certificate of one of them.

        Raises:
            ConfigError: One cannot be used.
        """
        self._paths = paths
        self._pems = WatchedPems(paths)
        self._newest = paths.server_context()

    def listening(self) -> ssl.SSLContext:
        """Return a context for a listener."""
        context = self._paths.server_context()
        context.sni_callback = self._on_hello
        if self._paths.ca is not None:
            # Who resumes a session is not asked for a certificate: it would outlive its authority.
            # Sessions of TLS 1.2 have a store that cannot be switched off.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context

    def _on_hello(self, connection: Any, _server_name: str | None, _: ssl.SSLContext) -> None:
        """Called by OpenSSL at the begin of each handshake, with a name or without."""
        if self._pems.changed() is not None:
            try:
                self._newest = self._paths.server_context()
            except ConfigError as exc:
                # Replaced again since they were read: the next handshake will find that.
                log.warning("certificate_not_renewed", reason=str(exc))
        connection.context = self._newest
