"""Errors of the Messages API: OpenAI's object, which all errors are first, in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from pagewire.kit import context

PATH = "/v1/messages"

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_BAD_REQUEST = "invalid_request_error"
_INTERNAL = "api_error"


def is_of_messages(path: str) -> bool:
    """Whether what is at this path answers in Anthropic's shape."""
    return path == PATH or path.startswith(f"{PATH}/")


def messages_error(error: dict[str, Any]) -> dict[str, Any]:
    """Return the error in Anthropic's shape.

    Args:
        error: OpenAI's object, `{"error": {"message", "type", "param", "code"}}`; the message names
            the field, for which this shape has no place of its own.
    """
    status = error["error"]["code"]
    kind = _KINDS.get(status, _INTERNAL if status >= 500 else _BAD_REQUEST)
    return {
        "type": "error",
        "error": {"type": kind, "message": error["error"]["message"]},
        "request_id": context.request_id(),
    }
