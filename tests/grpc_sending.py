"""A race of grpc.aio that tests of refused streams meet: the server ends a call while it is sent.

The status that the server gave is then lost: the client's library says INTERNAL when the message or
the end of a client's stream could not be written, although the status was on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

T = TypeVar("T")
_ATTEMPTS = 20


def was_ended_while_sending(error: grpc.aio.AioRpcError) -> bool:
    """Whether the error is this library's word for a failed write, not the server's status."""
    told = error.debug_error_string() or ""
    return error.code() is grpc.StatusCode.INTERNAL and told.startswith('Failed "execute_batch"')


async def with_its_status(ask: Callable[[], Awaitable[T]]) -> T:
    """Make a call, again if it lost its status while it was sent.

    Raises:
        grpc.aio.AioRpcError: The status that the server gave.
    """
    for _ in range(_ATTEMPTS):
        try:
            return await ask()
        except grpc.aio.AioRpcError as error:
            if not was_ended_while_sending(error):
                raise
    raise AssertionError(f"the call was ended while it was sent, {_ATTEMPTS} times in turn")
