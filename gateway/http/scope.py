"""What surrounds every HTTP request: ids, metrics, a log line; within, CORS and the guard."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.clients import Clients
from gateway.config import CorsConfig
from gateway.http.cors import Cors
from gateway.http.errors import ClientGoneError
from gateway.http.guard import Guard
from gateway.metrics import GatewayMetrics
from pagewire.kit import context
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

_CLIENT_GONE_STATUS = 499
_UNLOGGED_ROUTES = frozenset({"/health", "/ping", "/metrics"})


def guarded(
    routes: ASGIApp, clients: Clients, cors: CorsConfig, metrics: GatewayMetrics
) -> ASGIApp:
    """Return the whole application around the routes, outermost first: ids, CORS, the guard."""
    return HttpScope(Cors(Guard(routes, clients), cors), metrics)


class HttpScope:
    """The outermost ASGI application: every answer has an id, is counted and logged."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        ids = context.ids_from_metadata(headers)
        answer = _Answer(send, ids["request_id"])
        started_s = time.monotonic()
        with context.bind(**ids):
            try:
                await self._app(scope, receive, answer.send)
            except ClientGoneError:
                answer.status = _CLIENT_GONE_STATUS
            finally:
                self._note_end(scope, answer.status, time.monotonic() - started_s)

    def _note_end(self, scope: Scope, status: int, duration_s: float) -> None:
        route = scope.get("route")
        path = route.path if route is not None else "none"
        self._metrics.http_answer(path, status)
        if path not in _UNLOGGED_ROUTES:
            log.info("http", route=path, status=status, duration_s=round(duration_s, 6))


class _Answer:
    """Passes an answer on, with the request's id among its headers, and notes its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
            message = {**message, "headers": headers}
        await self._send(message)
