"""The answer on a connection beyond the bound of connections."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.http.errors import error_response
from pagewire.kit import context
from pagewire.kit.errors import NotBegunError

_RETRY_AFTER_S = 1.0


async def refuse_overload(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 and have the connection closed. An ASGI application."""
    headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
    error = NotBegunError(
        "too many connections are open; use fewer, or try again",
        reason="TOO_MANY_CONNECTIONS",
        retry_after_s=_RETRY_AFTER_S,
    )
    answer = error_response(error, "")
    answer.headers["x-request-id"] = context.ids_from_metadata(headers)["request_id"]
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)
