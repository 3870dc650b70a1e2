"""The request id, client and trace context of the work at hand, and their way through metadata.

Held in context variables: each asyncio task has its own copy, tasks started from it inherit it.
Server interceptors bind it, channels send it on, logs print it. It makes no spans: a traceparent
is passed on as it came, which W3C Trace Context allows to a hop that does not take part.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"
TRACESTATE_KEY = "tracestate"

_REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
_TRACEPARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)
_TRACESTATE: ContextVar[str | None] = ContextVar("tracestate", default=None)
_CLIENT: ContextVar[str | None] = ContextVar("client", default=None)

# Ids come from strangers and end up in logs and headers.
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_VALID_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_VALID_TRACESTATE = re.compile(r"[ -~]{1,512}")


def new_request_id() -> str:
    """Return a fresh id of 32 hexadecimal digits."""
    return secrets.token_hex(16)


def new_traceparent() -> str:
    """Return a W3C traceparent that starts a new, unsampled trace."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"


def request_id() -> str | None:
    """Return the id of the request that the current task works for, if any."""
    return _REQUEST_ID.get()


def traceparent() -> str | None:
    """Return the W3C traceparent of the current task, if any."""
    return _TRACEPARENT.get()


def trace_id() -> str | None:
    """Return the 32 hexadecimal digits that name the trace, if any."""
    value = _TRACEPARENT.get()
    return value.split("-")[1] if value else None


def client() -> str | None:
    """Return the name of the client that the current task works for, if it is known."""
    return _CLIENT.get()


def set_client(name: str) -> None:
    """Name the client for the rest of the current task, for logs; it is not sent on.

    Not for a block: what is logged at the end of the call, outside of it, shall have the name.
    """
    _CLIENT.set(name)


@contextmanager
def bind(
    request_id: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> Iterator[None]:
    """Bind ids for the block, in this task only. None keeps what is bound outside."""
    pairs = (
        (_REQUEST_ID, request_id),
        (_TRACEPARENT, traceparent),
        (_TRACESTATE, tracestate),
    )
    tokens = [(variable, variable.set(value)) for variable, value in pairs if value is not None]
    try:
        yield
    finally:
        for variable, token in reversed(tokens):
            variable.reset(token)


def ids_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Mapping[str, str]:
    """Return keyword arguments for `bind`: what is valid in the metadata, fresh ids for the rest.

    Keys are compared in lower case, so HTTP headers may be passed as they are.
    """
    found = {key.lower(): value for key, value in metadata if isinstance(value, str)}
    given_id = found.get(REQUEST_ID_KEY, "")
    given_trace = found.get(TRACEPARENT_KEY, "")
    ids = {
        "request_id": given_id if _VALID_REQUEST_ID.fullmatch(given_id) else new_request_id(),
        "traceparent": given_trace,
    }
    if not is_traceparent(given_trace):
        ids["traceparent"] = new_traceparent()
    elif _VALID_TRACESTATE.fullmatch(found.get(TRACESTATE_KEY, "")):
        ids["tracestate"] = found[TRACESTATE_KEY]
    return ids


def is_traceparent(value: str) -> bool:
    """Say whether a text is a W3C traceparent of a version that can be passed on."""
    return _VALID_TRACEPARENT.fullmatch(value) is not None


def joins_trace(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Say whether the metadata has a valid traceparent: else `ids_from_metadata` makes one up."""
    return any(
        key.lower() == TRACEPARENT_KEY and isinstance(value, str) and is_traceparent(value)
        for key, value in metadata
    )


def outgoing_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries the bound ids to the next service."""
    pairs = (
        (REQUEST_ID_KEY, _REQUEST_ID.get()),
        (TRACEPARENT_KEY, _TRACEPARENT.get()),
        (TRACESTATE_KEY, _TRACESTATE.get()),
    )
    return tuple((key, value) for key, value in pairs if value is not None)
