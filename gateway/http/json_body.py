"""Reading an HTTP body as one JSON object, within bounds of size, time and depth.

Python's JSON reader takes more than JSON has (NaN, Infinity, numbers that overflow to infinity);
none of that gets past here.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from gateway.http.errors import BodyTimeoutError, BodyTooLargeError, ClientGoneError
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.json_depth import MAX_JSON_DEPTH, is_too_deep

_JSON = "application/json"


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """Return the whole body.

    Raises:
        InvalidRequestError: Its content type is not JSON's.
        BodyTooLargeError: It has more than `max_bytes`.
        BodyTimeoutError: It did not arrive in `timeout_s`.
        ClientGoneError: The client left before it was complete.
    """
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise BodyTimeoutError(timeout_s) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    # Pages of other origins can send every other type without having been allowed to.
    media_type = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise InvalidRequestError(
            f"Content-Type: must be {_JSON}, not {media_type[:64]!a}", reason="INVALID_JSON"
        )
    return body


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the object that `body` is.

    Raises:
        InvalidRequestError: It is none; says where the text breaks.
    """
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float)
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise _invalid(f"the body is not valid JSON: {exc.msg} at {where}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # an integer of thousands of digits
        raise _invalid("the body has a number with too many digits") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    if is_too_deep(text, value):
        raise _too_deep()
    return value


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise BodyTooLargeError(max_bytes)
    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"the body has the number {name}; JSON numbers are finite")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("the body has a number that is too large; numbers must be finite")
    return value


def _too_deep() -> InvalidRequestError:
    return _invalid(f"the body is nested too deeply; at most {MAX_JSON_DEPTH} levels are taken")


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, reason="INVALID_JSON")
