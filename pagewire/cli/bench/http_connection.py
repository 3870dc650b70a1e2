"""One HTTP request and its streamed response on a connection of its own.

The response's bytes are noted as the socket gives them, in the protocol's callback, so that no
task's turn comes between an arrival and its time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from pagewire.cli.bench.http_response import HttpFormatError, HttpResponse
from pagewire.cli.bench.record import BenchRequestError

_MAX_ERROR_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, base_url: str, path: str) -> Endpoint:
        """Read a URL such as http://127.0.0.1:8000 and a path behind it.

        Raises:
            ValueError: It is no such URL.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} must be http://host:port or https://host:port")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        tls = ssl.create_default_context() if is_tls else None
        return cls(parts.hostname, port, parts.path.rstrip("/") + path, tls)

    def request(self, method: str, body: bytes, headers: dict[str, str]) -> bytes:
        """Return the bytes of a request with a JSON body, or an empty one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path} HTTP/1.1",
            f"host: {host}:{self.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def exchange(
    endpoint: Endpoint, request: bytes, on_body: Callable[[bytes, float], None], timeout_s: float
) -> None:
    """Send a request and pass on its answer's body as it comes, to its end.

    Args:
        endpoint: Of the server.
        request: Its bytes.
        on_body: Takes a piece of the body and the time of its arrival.
        timeout_s: For all of it.

    Raises:
        BenchRequestError: There is no answer, it is no success, or it is cut off.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, protocol = await loop.create_connection(
                lambda: _Exchange(request, on_body, loop),
                endpoint.host,
                endpoint.port,
                ssl=endpoint.tls,
            )
            try:
                await protocol.done
            finally:
                transport.abort()
    except TimeoutError:
        raise BenchRequestError(f"no end of the answer after {timeout_s:g} s") from None
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise BenchRequestError(f"{endpoint.host}:{endpoint.port}: {reason}") from None
    protocol.check()


class _Exchange(asyncio.Protocol):
    """`done` has a result when nothing more comes; `check` says whether that was the end."""

    def __init__(
        self,
        request: bytes,
        on_body: Callable[[bytes, float], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._on_body = on_body
        self._response = HttpResponse()
        self._error_body = b""
        self._failure: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        try:
            body = self._response.feed(data)
            if self._response.status == 200:
                self._on_body(body, now_s)
            elif len(self._error_body) < _MAX_ERROR_BODY_BYTES:
                self._error_body += body
        except Exception as exc:
            self._failure = exc
        if self._failure is not None or self._response.is_complete:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._failure is None and not self.done.done():
            try:
                self._response.end()
            except HttpFormatError as error:
                self._failure = exc or error
        self._end()

    def check(self) -> None:
        """Raise what went wrong."""
        if self._failure is not None:
            reason = str(self._failure) or type(self._failure).__name__
            raise BenchRequestError(reason) from self._failure
        if self._response.status != 200:
            text = self._error_body.decode("utf-8", "replace").strip().replace("\n", " ")
            raise BenchRequestError(f"HTTP {self._response.status}: {text[:500]}")

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
