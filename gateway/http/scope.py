"""What surrounds every HTTP request: ids, metrics, a log line; within, CORS and the guard."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.clients import Clients
from gateway.config import CorsConfig
from gateway.http.cors import Cors
from gateway.http.errors import ClientGoneError
from gateway.http.guard import Guard
from gateway.http.orca import NamedLoad, load_headers
from gateway.metrics import GatewayMetrics
from gateway.trace.recorder import TraceRecorder
from pagewire.kit import context
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

Header = tuple[bytes, bytes]

_CLOSE: Header = (b"connection", b"close")
_CLIENT_GONE_STATUS = 499
_UNLOGGED_ROUTES = frozenset({"/health", "/ping", "/metrics", "/v1/map"})


def guarded(
    routes: ASGIApp,
    clients: Clients,
    cors: CorsConfig,
    metrics: GatewayMetrics,
    load: NamedLoad,
    is_draining: Callable[[], bool],
    traces: TraceRecorder,
) -> ASGIApp:
    """Return the whole application around the routes, outermost first: ids, CORS, the guard.

    Args:
        routes: The application.
        clients: Who may ask.
        cors: Which other sites' pages may.
        metrics: Count the answers.
        load: Figures of the engines, for who asks for them.
        is_draining: Whether clients are to go elsewhere: then each answer ends its connection, with
            which a client would else come back until it is cut.
        traces: Of requests.
    """
    return HttpScope(Cors(Guard(routes, clients), cors), metrics, load, is_draining, traces)


class HttpScope:
    """The outermost ASGI application: every answer has an id, is counted and logged."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: GatewayMetrics,
        load: NamedLoad,
        is_draining: Callable[[], bool],
        traces: TraceRecorder,
    ) -> None:
        self._app = app
        self._is_draining = is_draining
        self._traces = traces
        self._metrics = metrics
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        ids, joins = context.ids_from_metadata(headers), context.joins_trace(headers)
        answer = _Answer(send, ids["request_id"], partial(self._headers, scope))
        started_s = time.monotonic()
        with context.bind(**ids), self._traces.call(joins_trace=joins) as trace:
            try:
                await self._app(scope, receive, answer.send)
            except ClientGoneError:
                answer.status = _CLIENT_GONE_STATUS
            finally:
                path = _path(scope)
                self._note_end(scope, path, answer.status, time.monotonic() - started_s)
                self._traces.end(trace, path, answer.status)

    def _headers(self, scope: Scope, status: int) -> list[Header]:
        headers = load_headers(scope, self._load, status)
        return [*headers, _CLOSE] if self._is_draining() else headers

    def _note_end(self, scope: Scope, path: str, status: int, duration_s: float) -> None:
        self._metrics.http_answer(scope["method"], path, status, duration_s)
        if path not in _UNLOGGED_ROUTES:
            log.info("http", route=path, status=status, duration_s=round(duration_s, 6))


def _path(scope: Scope) -> str:
    """Return the route's path, never the client's own."""
    route = scope.get("route")
    return "none" if route is None else str(route.path)


class _Answer:
    """Passes an answer on, with more headers, and notes its status."""

    def __init__(self, send: Send, request_id: str, more: Callable[[int], list[Header]]) -> None:
        self._send = send
        self._request_id = request_id
        self._more = more
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self._request_id.encode())
            headers = [*message.get("headers", ()), own, *self._more(self.status)]
            message = {**message, "headers": headers}
        await self._send(message)
