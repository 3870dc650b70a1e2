"""PEM files of a certificate, its key and the authorities of the other side, read and tried.

`WatchedPems` reads them again when they were replaced. It knows neither gRPC nor HTTP, nor what the
certificates are for.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pagewire.kit.config import ConfigError
from pagewire.kit.logs import get_logger

_MAX_FILE_BYTES = 1024 * 1024

log = get_logger("pagewire.kit.pem")


@dataclass(frozen=True, slots=True)
class PemFiles:
    """What was in the files."""

    cert: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    """None: the other side shows no certificate."""


@dataclass(frozen=True, slots=True)
class PemPaths:
    """Where the files are, and the flags that say so, for messages."""

    cert: Path
    key: Path
    ca: Path | None
    flags: tuple[str, str, str]
    """Of certificate, key and authorities."""

    def __iter__(self) -> Iterator[tuple[Path, str]]:
        for path, flag in zip((self.cert, self.key, self.ca), self.flags, strict=True):
            if path is not None:
                yield path, flag

    def read(self) -> PemFiles:
        """Read and try the files.

        Raises:
            ConfigError: One cannot be used; the message names its flag.
        """
        contents = [_read(path, flag) for path, flag in self]
        self.server_context()  # tries them
        return PemFiles(contents[0], contents[1], contents[2] if self.ca is not None else None)

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a server: with authorities, clients must show a certificate of one.

        Raises:
            ConfigError: A file cannot be used; the message names its flag.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        flags = f"{self.flags[0]} {self.cert} and {self.flags[1]} {self.key}"
        try:
            # Without the function OpenSSL asks on the terminal for a passphrase.
            context.load_cert_chain(self.cert, self.key, password=lambda: b"")
        except (ssl.SSLError, ValueError) as exc:
            rule = "must be PEM files of a certificate and its key, without a passphrase"
            raise ConfigError(f"{flags}: {rule}") from exc
        except OSError as exc:
            raise _unreadable(flags, exc) from exc
        if self.ca is None:
            return context
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as exc:
            raise ConfigError(f"{self.flags[2]} {self.ca}: has no certificate in PEM") from exc
        except OSError as exc:
            raise _unreadable(f"{self.flags[2]} {self.ca}", exc) from exc
        return context

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """Return what changes when a file is replaced.

        Raises:
            OSError: One is gone.
        """
        return tuple((path.stat().st_ino, path.stat().st_mtime_ns) for path, _ in self)


class WatchedPems:
    """The files of a certificate that may be renewed; any thread may ask."""

    def __init__(self, paths: PemPaths) -> None:
        """Read the files for the first time.

        Raises:
            ConfigError: One cannot be used.
        """
        self._paths = paths
        self._lock = threading.Lock()
        self._stamps = _stamps(paths)
        self.first = paths.read()

    def changed(self) -> PemFiles | None:
        """Return what is new since the last call; None: nothing, or nothing that can be used."""
        with self._lock:
            stamps = _stamps(self._paths)
            if stamps == self._stamps:
                return None
            # Noted first: files that do not fit together yet are not read again and again.
            self._stamps = stamps
            try:
                renewed = self._paths.read()
            except ConfigError as exc:
                log.warning("certificate_not_renewed", reason=str(exc))
                if not isinstance(exc.__cause__, ssl.SSLError):
                    self._stamps = None  # it may pass, as with too many open files
                return None
        log.info("certificate_renewed", file=str(self._paths.cert))
        return renewed


def _stamps(paths: PemPaths) -> tuple[tuple[int, int], ...] | None:
    try:
        return paths.stamps()
    except OSError:
        return None


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise _unreadable(f"{flag} {path}", exc) from exc
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{flag} {path}: has more than {_MAX_FILE_BYTES} bytes")
    return content


def _unreadable(what: str, exc: OSError) -> ConfigError:
    return ConfigError(f"{what}: {(exc.strerror or 'cannot be read').lower()}")
