"""uvicorn's server inside our event loop: it neither handles signals nor configures logs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from gateway.http.certificates import RenewedCertificate
from gateway.http.protocol import BoundedProtocol, ConnectionLimits
from pagewire.kit.errors import FailedPreconditionError, InternalError
from pagewire.kit.pem import PemPaths

_BACKLOG = 2048
_MAX_CLOSE_S = 5


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `pagewire.kit.lifecycle`'s."""
        yield


class HttpServer:
    """Serves the application on one address. `start`, then `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        limits: ConnectionLimits,
        *,
        on_refused: Callable[[int], None] = lambda _: None,
        tls: PemPaths | None = None,
    ) -> None:
        """Prepare the server.

        Args:
            app: The ASGI application.
            host: Address to bind to.
            port: 0: any free one.
            limits: Of connections.
            on_refused: Called with the status of an answer that the application did not make.
            tls: Certificate and key, which are read again when they are replaced; None: plain text.

        Raises:
            ConfigError: A certificate cannot be used.
        """
        self._host = host
        self._port = port
        self._send_timeout_s = limits.send_timeout_s
        certificate = RenewedCertificate(tls) if tls is not None else None
        protocol = partial(BoundedProtocol, limits=limits, on_refused=on_refused)
        self._task: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast(type[BoundedProtocol], protocol),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_MAX_CLOSE_S,
                ssl_context_factory=(
                    None if certificate is None else lambda *_: certificate.listening()
                ),
            )
        )

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            FailedPreconditionError: The address cannot be had.
        """
        listener = self._bind()
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listener]), name="http")
        while not self._server.started:
            if self._task.done():
                raise InternalError("the HTTP server did not start")
            await asyncio.sleep(0.005)  # uvicorn has no event for it

    async def wait_ended(self) -> None:
        """Return when `stop` has ended it.

        Raises:
            InternalError: It ended by itself.
        """
        if self._task is None:
            return
        await asyncio.wait({self._task})
        if not self._server.should_exit:
            cause = None if self._task.cancelled() else self._task.exception()
            raise InternalError("the HTTP server ended by itself") from cause

    def end_connections(self) -> None:
        """Have every connection end with the answer that it gives now, whose head may be out.

        Later answers say so themselves (`gateway.http.scope`).
        """
        for connection in self._server.server_state.connections:
            cycle = cast(BoundedProtocol, connection).cycle
            if cycle is not None:
                cycle.keep_alive = False

    async def stop(self) -> None:
        """Close the listener, let answers that are being written end, close; idempotent."""
        if self._task is not None:
            self._server.should_exit = True
            await asyncio.wait({self._task})  # how it ended, `wait_ended` tells

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listener = socket.create_server(
                (self._host, self._port), family=family, backlog=_BACKLOG
            )
        except OSError as exc:
            raise FailedPreconditionError(
                f"cannot listen on {self._host}:{self._port} for HTTP:"
                f" {exc.strerror or 'no such address'}; change --http-port or --host",
                reason="ADDRESS_IN_USE",
            ) from exc
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Connections inherit it. A client that reads nothing would else keep a connection, and
            # what waits on it, for good, even after it was closed here.
            timeout_ms = round(self._send_timeout_s * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return listener
