"""Names of fields as a client wrote them, where they are others than those inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from pagewire.kit.errors import InvalidRequestError


@contextmanager
def client_names(names: Mapping[str, str]) -> Iterator[None]:
    """Let refusals name fields as the client knows them.

    Args:
        names: By the name inside.
    """
    try:
        yield
    except InvalidRequestError as exc:
        name = names.get(exc.field or "")
        if exc.field is None or name is None:
            raise
        message = exc.message.replace(exc.field, name)
        raise InvalidRequestError(message, reason=exc.reason, field=name) from None


def with_client_names(app: ASGIApp, names: Mapping[str, str]) -> ASGIApp:
    """Return an application whose refusals before the first byte name fields so."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        with client_names(names):
            await app(scope, receive, send)

    return named if names else app
