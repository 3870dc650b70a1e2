"""Calls of the blocking client, tried again as `retry_policy` says.

A call is tried again as long as no message came: admission fails before any. Pauses end early when
the call is cancelled or its client is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import grpc

from pagewire.client.errors import request_cancelled
from pagewire.client.retry_policy import Attempts

Start = Callable[..., Any]
"""Starts an attempt; takes `timeout` in seconds, or None."""


class Pauses:
    """The pauses of one client's calls; they end with it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection may close the client at any place
        self._cancelled: set[threading.Event] = set()
        self._is_closed = False

    def wait(self, cancelled: threading.Event, seconds: float) -> bool:
        """Wait; return whether the call goes on: False once it is cancelled.

        Args:
            cancelled: Of the call; `close` sets it.
            seconds: How long.
        """
        with self._lock:
            if self._is_closed:
                cancelled.set()
            self._cancelled.add(cancelled)
        try:
            return not cancelled.wait(seconds)
        finally:
            with self._lock:
                self._cancelled.discard(cancelled)

    def close(self) -> None:
        """Cancel the calls that wait; idempotent."""
        with self._lock:
            self._is_closed = True
            for cancelled in self._cancelled:
                cancelled.set()


def call_unary(start: Start, attempts: Attempts, pauses: Pauses) -> Any:
    """Return the answer of a call that has one message.

    Raises:
        grpc.RpcError: As the last attempt failed.
        RequestCancelledError: The client was closed between two attempts.
    """
    while True:
        try:
            return start(timeout=attempts.timeout_s())
        except grpc.RpcError as exc:
            pause_s = attempts.pause_s(cast(grpc.Call, exc))
            if pause_s is None:
                raise
            if not pauses.wait(threading.Event(), pause_s):
                raise request_cancelled() from exc


class RetryingStream:
    """A call that streams messages: an iterator of them. One thread reads, any may cancel.

    The next attempt starts while the reader waits for a message.
    """

    def __init__(self, start: Start, attempts: Attempts, pauses: Pauses) -> None:
        """Start the first attempt.

        Args:
            start: Starts an attempt.
            attempts: Of this call.
            pauses: Of the client.
        """
        self._start = start
        self._attempts = attempts
        self._pauses = pauses
        self._cancelled = threading.Event()
        self._lock = threading.Lock()  # an attempt starts or is cancelled
        self._may_retry = True
        self._call = start(timeout=attempts.timeout_s())

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled before its end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the call; idempotent."""
        with self._lock:
            if self._may_retry or not self._call.done():
                self._cancelled.set()
            self._call.cancel()

    def __iter__(self) -> RetryingStream:
        return self

    def __next__(self) -> Any:
        """Return the next message.

        Raises:
            grpc.RpcError: As the last attempt failed.
            RequestCancelledError: It was cancelled between two attempts.
        """
        while True:
            try:
                message = next(self._call)
            except StopIteration:
                self._may_retry = False
                raise
            except grpc.RpcError as exc:
                self._retry(exc)
            else:
                self._may_retry = False
                return message

    def _retry(self, error: grpc.RpcError) -> None:
        """Start the next attempt after the last one's failure; raise the failure if there is none.

        Raises:
            RequestCancelledError: It was cancelled meanwhile.
        """
        pause_s = self._attempts.pause_s(cast(grpc.Call, error)) if self._may_retry else None
        if pause_s is None:
            self._may_retry = False
            raise error
        self._pauses.wait(self._cancelled, pause_s)
        with self._lock:
            if self._cancelled.is_set():
                raise request_cancelled() from error
            self._call = self._start(timeout=self._attempts.timeout_s())
