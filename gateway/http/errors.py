"""Errors in OpenAI's shape: the one place where exceptions become HTTP statuses.

The kit's exceptions carry gRPC codes; the table here says what they are over HTTP. `code` of the
object is the status; the reason for programs, the same word as over gRPC, is the answer's header
`x-error-reason`. What is not ours becomes a 500 with an id that the logs have too.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import grpc
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.http.json_response import json_response
from pagewire.kit.errors import (
    NOT_BEGUN_HEADER,
    InternalError,
    NotBegunError,
    PagewireError,
    UnauthenticatedError,
)
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

_STATUSES: dict[grpc.StatusCode, tuple[int, str]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    grpc.StatusCode.FAILED_PRECONDITION: (400, "invalid_request_error"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "authentication_error"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error"),
    grpc.StatusCode.NOT_FOUND: (404, "not_found_error"),
    grpc.StatusCode.ALREADY_EXISTS: (409, "conflict_error"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    grpc.StatusCode.UNIMPLEMENTED: (501, "not_implemented_error"),
    grpc.StatusCode.UNAVAILABLE: (503, "service_unavailable_error"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "timeout_error"),
}
# Fields that have another name over HTTP than inside.
_FIELD_NAMES = {
    "template_arguments": "chat_template_kwargs",
    "template_arguments_json": "chat_template_kwargs",
}
_INTERNAL = (500, "server_error")
_BAD_REQUEST = "invalid_request_error"
_ROUTER_REASONS = {404: "ROUTE_NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}

REASON_HEADER = "x-error-reason"


class ClientGoneError(Exception):
    """The client disconnected; nobody reads an answer."""


class BodyError(Exception):
    """A body that is not read to its end."""

    status = 400
    reason = "INVALID_BODY"


class BodyTooLargeError(BodyError):
    """The body exceeds the limit."""

    status = 413
    reason = "BODY_TOO_LARGE"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body has more than {max_bytes} bytes, which is the limit")


class BodyTimeoutError(BodyError):
    """The body did not arrive in time."""

    status = 408
    reason = "BODY_TIMEOUT"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the body did not arrive in {timeout_s:g} s")


def status_of(error: PagewireError) -> int:
    """Return the HTTP status of an error."""
    return _STATUSES.get(error.code, _INTERNAL)[0]


def error_object(error: PagewireError) -> dict[str, Any]:
    """Return the error as OpenAI's object, for a body or an event of a stream."""
    status, kind = _STATUSES.get(error.code, _INTERNAL)
    field, message = error.field, error.message
    if field in _FIELD_NAMES:
        message = message.replace(field, _FIELD_NAMES[field])
        field = _FIELD_NAMES[field]
    return _object(message, kind, status, field)


def bad_request_object(message: str, status: int) -> dict[str, Any]:
    """Return the object for what is refused as HTTP, before anything of ours looks at it."""
    return _object(message, _BAD_REQUEST, status)


def to_pagewire_error(exc: Exception) -> PagewireError:
    """Return the exception if it is ours, else log it and return an opaque one with its id."""
    if isinstance(exc, PagewireError):
        return exc
    error_id = secrets.token_hex(8)
    log.error("http_bug", error_id=error_id, exc_info=exc)
    return InternalError(f"internal error; the logs have more under error id {error_id}")


def error_response(
    exc: Exception,
    what: str,
    shape: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Response:
    """Return the answer to a request that ended with an exception before an answer began.

    Args:
        exc: What was raised.
        what: The request, as method and path, for the router's own errors.
        shape: From OpenAI's object to that of another API; None: as it is.
    """
    body, status, headers = _error_parts(exc, what)
    return json_response(shape(body) if shape else body, status, headers)


def _error_parts(exc: Exception, what: str) -> tuple[dict[str, Any], int, dict[str, str]]:
    if isinstance(exc, HTTPException):
        body = bad_request_object(f"{what}: {exc.detail}", exc.status_code)
        reason = _ROUTER_REASONS.get(exc.status_code, "HTTP_ERROR")
        headers = {REASON_HEADER: reason, **(exc.headers or {})}
        return body, exc.status_code, headers
    if isinstance(exc, BodyError):
        # The rest of the body is not read, so the connection cannot be used again.
        headers = {REASON_HEADER: exc.reason, "connection": "close"}
        return bad_request_object(str(exc), exc.status), exc.status, headers
    error = to_pagewire_error(exc)
    return error_object(error), status_of(error), _headers(error)


def _headers(error: PagewireError) -> dict[str, str]:
    headers = {REASON_HEADER: error.reason}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, NotBegunError):
        headers[NOT_BEGUN_HEADER] = "1"
    if isinstance(error, UnauthenticatedError):
        headers["www-authenticate"] = "Bearer"
    return headers


def _object(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
