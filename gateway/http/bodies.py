"""From a request's body to what an endpoint reads of it, within the limits of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from gateway.http.fields import Fields
from gateway.http.json_body import parse_json_object, read_body
from gateway.trace.request_trace import current as current_trace

R = TypeVar("R")

# Larger bodies are parsed beside the event loop, which other clients need meanwhile.
_MAX_INLINE_BODY_BYTES = 256 * 1024


async def read_json(
    request: Request, read: Callable[[Fields], R], *, max_bytes: int, timeout_s: float
) -> tuple[Fields, R]:
    """Return the body's fields and what `read` makes of them.

    Raises:
        BodyError: It does not arrive in time or is too large.
        InvalidRequestError: It is no JSON object, or `read` refuses it.
    """
    body = await read_body(request, max_bytes, timeout_s)
    current_trace().mark("receive")
    if len(body) > _MAX_INLINE_BODY_BYTES:
        return await asyncio.to_thread(_parse, body, read)
    return _parse(body, read)


def _parse(body: bytes, read: Callable[[Fields], R]) -> tuple[Fields, R]:
    fields = Fields(parse_json_object(body))
    return fields, read(fields)
