"""How grpc.aio wakes an event loop, at the price of one wake-up for a burst of operations.

A thread of grpc.aio (1.85) writes a byte to a socket pair for each operation that has completed,
each message written or read. The loop's callback then takes all that have completed but one byte
alone, so after a burst of N it comes N - 1 times more for nothing, each time a turn of the loop.
Here it is given a pipe, which costs less than a pair of sockets, and reads all that is in it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from grpc._cython import cygrpc  # type: ignore[attr-defined]

_PIPE_BYTES = 65536
_POLLER_NAME = "(_poll_wrapper)"
"""Ends the name that Python gives to grpc.aio's thread, after the function that it runs."""


class _End:
    """One end of a pipe, with what grpc.aio asks of a socket."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self._fd, flag)

    def recv(self, _num_bytes: int) -> bytes:
        """Read all that is there, however little is asked for.

        An operation is in grpc.aio's queue before its byte is written, and the queue is emptied
        after this: what is read here stands for nothing that stays behind.
        """
        return os.read(self._fd, _PIPE_BYTES)

    def close(self) -> None:
        os.close(self._fd)


class _Pipes:
    """Stands for the module `socket` in grpc.aio, which uses nothing else of it for this."""

    @staticmethod
    def socketpair() -> tuple[_End, _End]:
        read_fd, write_fd = os.pipe()
        return _End(read_fd), _End(write_fd)

    def __getattr__(self, name: str) -> object:
        return getattr(socket, name)


def cheapen_wakeups() -> None:
    """Have it so from the first channel or server on that is made in this process; idempotent.

    For a process that has one event loop, from its start to its end: with more, an operation of a
    loop that is closed makes the callback fail, and what came after it then waits for the next
    byte, which may never come. grpc.aio's own way has a byte for each.
    """
    # Another version may have another way, which this would break or not reach.
    if getattr(cygrpc, "socket", None) is socket:
        cygrpc.socket = _Pipes()


def let_completions_gather() -> None:
    """Have grpc.aio's thread push nobody off a core to tell of a completed operation (Linux).

    On a machine whose cores are all busy it pushes the event loop off its core for each message
    that the loop writes. As `SCHED_BATCH` it waits there until the loop sleeps or its time is up,
    and then tells of all that completed; where a core is idle nothing changes. An operation may be
    told some milliseconds later, so this is not for a service that others wait for in each step.
    Once the first channel or server is made; a thread that is not found, or may not be changed
    (as in a sandbox), stays as it is.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in threading.enumerate():
        if thread.name.endswith(_POLLER_NAME) and thread.native_id is not None:
            with contextlib.suppress(OSError):
                # Whoever started the process with another policy meant it for all of its threads.
                if os.sched_getscheduler(thread.native_id) == os.SCHED_OTHER:
                    os.sched_setscheduler(thread.native_id, os.SCHED_BATCH, os.sched_param(0))
