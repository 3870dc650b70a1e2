"""Calls of the asyncio client, tried again as `retry_policy` says.

A call is tried again as long as no message came: admission fails before any. Pauses end early when
the call or its task is cancelled, or its client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from pagewire.client.errors import request_cancelled
from pagewire.client.retry_policy import Attempts
from pagewire.client.retrying import Start


class AsyncPauses:
    """The pauses of one client's calls; they end with it."""

    def __init__(self) -> None:
        self._cancelled: set[asyncio.Event] = set()
        self._is_closed = False

    async def wait(self, cancelled: asyncio.Event, seconds: float) -> bool:
        """Wait; return whether the call goes on: False once it is cancelled.

        Args:
            cancelled: Of the call; `close` sets it.
            seconds: How long.
        """
        if self._is_closed:
            cancelled.set()
        self._cancelled.add(cancelled)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await cancelled.wait()
        finally:
            self._cancelled.discard(cancelled)
        return not cancelled.is_set()

    def close(self) -> None:
        """Cancel the calls that wait; idempotent."""
        self._is_closed = True
        for cancelled in self._cancelled:
            cancelled.set()


async def call_unary(start: Start, attempts: Attempts, pauses: AsyncPauses) -> Any:
    """Return the answer of a call that has one message.

    Raises:
        grpc.aio.AioRpcError: As the last attempt failed.
        RequestCancelledError: The client was closed between two attempts.
    """
    while True:
        try:
            return await start(timeout=attempts.timeout_s())
        except grpc.aio.AioRpcError as exc:
            pause_s = attempts.pause_s(exc)
            if pause_s is None:
                raise
            if not await pauses.wait(asyncio.Event(), pause_s):
                raise request_cancelled() from exc


class AsyncRetryingStream:
    """A call that streams messages, read by one task.

    The next attempt starts while the reader waits for a message.
    """

    def __init__(self, start: Start, attempts: Attempts, pauses: AsyncPauses) -> None:
        """Start the first attempt.

        Args:
            start: Starts an attempt.
            attempts: Of this call.
            pauses: Of the client.
        """
        self._start = start
        self._attempts = attempts
        self._pauses = pauses
        self._cancelled = asyncio.Event()
        self._may_retry = True
        self._call = start(timeout=attempts.timeout_s())

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled before its end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the call; idempotent."""
        if self._may_retry or not self._call.done():
            self._cancelled.set()
        self._call.cancel()

    async def read(self) -> Any:
        """Return the next message, or grpc.aio.EOF.

        Raises:
            grpc.aio.AioRpcError: As the last attempt failed.
            RequestCancelledError: It was cancelled between two attempts.
        """
        while True:
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError as exc:
                await self._retry(exc)
            else:
                self._may_retry = False
                return message

    async def _retry(self, error: grpc.aio.AioRpcError) -> None:
        """Start the next attempt after the last one's failure; raise the failure if there is none.

        Raises:
            RequestCancelledError: It was cancelled meanwhile.
        """
        pause_s = self._attempts.pause_s(error) if self._may_retry else None
        if pause_s is None:
            self._may_retry = False
            try:
                raise error
            finally:
                del error  # it leads back to this frame
        if not await self._pauses.wait(self._cancelled, pause_s):
            raise request_cancelled() from error
        self._call = self._start(timeout=self._attempts.timeout_s())
