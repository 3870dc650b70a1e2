"""Server-sent events over ASGI: the head of a stream, comments, and last words to a slow client."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from gateway.http.errors import ClientGoneError

_LAST_WORDS_TIMEOUT_S = 5.0

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of nginx's kind would hold events back.
    (b"x-accel-buffering", b"no"),
)
KEEP_ALIVE: Message = {
    "type": "http.response.body",
    "body": b": keep-alive\n\n",
    "more_body": True,
}


def start() -> Message:
    """Return the head of a stream; a new one, since what is around may add headers to it."""
    return {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}


def piece(body: bytes) -> Message:
    """Return a part of the stream that is not its last."""
    return {"type": "http.response.body", "body": body, "more_body": True}


async def send_last_words(send: Send, body: bytes) -> None:
    """Send the last part of a stream that failed, unless the client does not read it.

    Raises:
        ClientGoneError: It does not.
    """
    try:
        async with asyncio.timeout(_LAST_WORDS_TIMEOUT_S):
            await send({"type": "http.response.body", "body": body})
    except TimeoutError:
        raise ClientGoneError from None
