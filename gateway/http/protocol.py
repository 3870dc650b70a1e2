"""One HTTP connection: uvicorn's protocol on httptools, with the bounds that it lacks.

uvicorn bounds neither the head of a request nor the time that it may take, and refuses in plain
text. Here a head has a size, a number of headers and a deadline; a request that nobody reads on has
a deadline too; connections beyond a bound are answered 503, and far beyond it closed; whatever
never reaches the application is refused in OpenAI's shape. It knows no routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.errors import REASON_HEADER, bad_request_object
from gateway.http.json_response import to_json
from gateway.http.overload import refuse_overload
from pagewire.kit import context

_MAX_HEADERS = 256
_HEADER_EXTRA_BYTES = 4  # colon, space and line end
# Beyond the bound a connection still gets a 503; beyond this many times the bound it gets nothing.
_MAX_OVERLOAD = 2


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of connections, and of what they send before a request reaches the application."""

    max_connections: int
    max_header_bytes: int
    header_timeout_s: float
    send_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    reason: str
    message: str


class BoundedProtocol(HttpToolsProtocol):
    """A connection.

    `_timer` ends it unless the head that is awaited, or the rest of a body that nobody reads,
    arrives in time; uvicorn's own timer is for a connection that says nothing between requests.
    """

    def __init__(
        self,
        *args: Any,
        limits: ConnectionLimits,
        on_refused: Callable[[int], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._on_refused = on_refused
        self._timer: asyncio.TimerHandle | None = None
        self._active: RequestResponseCycle | None = None
        self._refusal: _Refusal | None = None
        self._in_head = False
        self._in_body = False
        self._has_content = False
        """Whether the data at hand has content of a body."""
        self._num_begun = 0
        self._num_headers = 0
        self._num_head_bytes = 0
        """Of the head so far, or of what came in a body since its last content: trailers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        excess = len(self.connections) / self._limits.max_connections
        if excess > _MAX_OVERLOAD:
            transport.abort()
            return
        if excess > 1:
            self.app: ASGIApp = refuse_overload
        self._arm(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        # uvicorn tells the newest of several pipelined requests only.
        for cycle in filter(None, (self._active, *(cycle for cycle, _ in self.pipeline))):
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = (self._in_head, self._in_body, self._num_begun, self._num_head_bytes)
        self._has_content = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._count_untold(len(data), *before)
        if self._num_head_bytes > self._limits.max_header_bytes:
            self._refusal = self._too_large()
            self.send_400_response("")
        elif self._timer is None and self.timeout_keep_alive_task is None and not self._is_busy():
            self._arm(self._limits.header_timeout_s)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, or `_refusal`, and close."""
        refusal = self._refusal or _MALFORMED
        if self.transport.is_closing():
            return
        cycle = self._active
        if self._is_busy() and cycle is not None and (cycle.response_started or not self._in_body):
            self.transport.close()  # an answer that came now would be taken for another request's
            return
        headers = self.headers if self._in_head or self._in_body else ()
        self.transport.write(_answer(refusal, headers))
        self.transport.close()
        self._on_refused(refusal.status)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_begun += 1
        self._in_head = True
        self._num_headers = self._num_head_bytes = 0
        if self._timer is None:
            self._arm(self._limits.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._count(len(name) + len(value) + _HEADER_EXTRA_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._disarm()
        self._in_head, self._in_body = False, True
        self._num_head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_content = True
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and not self.pipeline and not self.transport.is_closing():
            self._arm(self.timeout_keep_alive)  # nobody reads the rest of the body

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _is_busy(self) -> bool:
        """Say whether an answer is being made."""
        return self._active is not None and not self._active.response_complete

    def _count(self, num_bytes: int) -> None:
        """Count a part of a head, or of the trailers of a body.

        Raises:
            ValueError: There are too many; the parser passes it on as a refusal.
        """
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self._limits.max_header_bytes or self._num_headers > _MAX_HEADERS:
            self._refusal = self._too_large()
            raise ValueError("the head is too large")

    def _count_untold(
        self, num_bytes: int, in_head: bool, in_body: bool, num_begun: int, num_head_bytes: int
    ) -> None:
        """Count what the parser has taken in and not told of: it may keep it.

        Args:
            num_bytes: Of the data that came.
            in_head: Whether a head had begun before.
            in_body: Whether a body had.
            num_begun: Requests that had begun before.
            num_head_bytes: What had been counted before.
        """
        if self._in_head and in_head and self._num_begun == num_begun:
            self._num_head_bytes = num_head_bytes + num_bytes
        elif self._in_head and not in_body and self._num_begun == num_begun + 1 and not in_head:
            self._num_head_bytes = num_bytes
        elif self._in_body and in_body and not self._has_content:
            self._num_head_bytes = num_head_bytes + num_bytes

    def _too_large(self) -> _Refusal:
        message = (
            f"the request's line and headers are too large: at most {_MAX_HEADERS} headers and"
            f" {self._limits.max_header_bytes} bytes are taken"
        )
        return _Refusal(431, "HEADERS_TOO_LARGE", message)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._is_busy():
            self._arm(self._limits.header_timeout_s)  # the next head may wait for this answer
        elif self._in_head:
            message = f"the headers did not arrive in {self._limits.header_timeout_s:g} s"
            self._refusal = _Refusal(408, "HEADER_TIMEOUT", message)
            self.send_400_response("")
        else:
            self.transport.close()


_MALFORMED = _Refusal(400, "MALFORMED_HTTP", "the request is not valid HTTP/1.1")


def _answer(refusal: _Refusal, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of an answer that ends its connection."""
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    body = to_json(bad_request_object(refusal.message, refusal.status))
    lines = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"{REASON_HEADER}: {refusal.reason}",
        f"x-request-id: {context.ids_from_metadata(texts)['request_id']}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
