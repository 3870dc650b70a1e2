"""Between every request and its route: a key, its client's limits, and one mapping of errors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.clients import Clients
from gateway.http.errors import ClientGoneError, error_response, to_pagewire_error
from gateway.http.messages.errors import is_of_messages, messages_error

_OPEN_PATHS = frozenset({"/", "/health", "/ping"})
_OPEN_PREFIX = "/static/"
# Answers that tell what there is cost nothing worth a limit; OPTIONS is for browsers.
_UNLIMITED_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """An ASGI application around the routes. What they raise becomes an error answer."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The router raises its own 404 and 405 only for an application around it.
        scope["app"] = self
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            with self._admitted(scope):
                await self._app(scope, receive, send_and_note)
        except ClientGoneError:
            raise
        except Exception as exc:
            if has_begun:
                # Too late for an answer: a broken connection tells the client.
                raise to_pagewire_error(exc) from exc
            what = f"{scope['method']} {scope['path']}"
            shape = messages_error if is_of_messages(scope["path"]) else None
            await error_response(exc, what, shape)(scope, receive, send)

    def _admitted(self, scope: Scope) -> AbstractContextManager[None]:
        """Return the request's place among those of its client.

        Raises:
            PagewireError: It has no key.
        """
        path, method = scope["path"], scope["method"]
        if method == "OPTIONS" or path in _OPEN_PATHS or path.startswith(_OPEN_PREFIX):
            return nullcontext()
        headers = Headers(scope=scope)
        client = self._clients.identify(headers.get("authorization"), headers.get("x-api-key"))
        return nullcontext() if method in _UNLIMITED_METHODS else client.running()
