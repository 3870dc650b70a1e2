"""What surrounds every HTTP request: ids, authentication, error answers, metrics, a log line."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import check_bearer
from gateway.http.errors import ClientGoneError, error_response, to_pagewire_error
from gateway.metrics import GatewayMetrics
from pagewire.kit import context
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

_PROTECTED_PREFIX = "/v1/"
_CLIENT_GONE_STATUS = 499
_UNLOGGED_ROUTES = frozenset({"/health", "/ping", "/metrics"})


class HttpScope:
    """The outermost ASGI application. An exception that gets here becomes an error answer."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, api_keys: Sequence[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        ids = context.ids_from_metadata(headers)
        answer = _Answer(send, ids["request_id"])
        started_s = time.monotonic()
        with context.bind(**ids):
            try:
                await self._run(scope, receive, answer)
            except ClientGoneError:
                answer.status = _CLIENT_GONE_STATUS
            finally:
                self._note_end(scope, answer.status, time.monotonic() - started_s)

    async def _run(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        # The router raises its own 404 and 405 only for an application around it.
        scope["app"] = self
        try:
            if scope["path"].startswith(_PROTECTED_PREFIX):
                check_bearer(Request(scope).headers.get("authorization"), self._api_keys)
            await self._app(scope, receive, answer.send)
        except ClientGoneError:
            raise
        except Exception as exc:
            if answer.status:
                # Too late for an answer: a broken connection tells the client.
                raise to_pagewire_error(exc) from exc
            what = f"{scope['method']} {scope['path']}"
            await error_response(exc, what)(scope, receive, answer.send)

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
