"""Failed calls as exceptions: those of `pagewire.kit.errors`, with words for a client."""

from __future__ import annotations

from typing import ClassVar

import grpc

from pagewire.kit.errors import PagewireError, ServiceUnavailableError, from_rpc_error


class RequestCancelledError(PagewireError):
    """The request was cancelled by this client."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.CANCELLED
    default_reason: ClassVar[str] = "CANCELLED"


def request_cancelled() -> RequestCancelledError:
    return RequestCancelledError("the request was cancelled")


def incomplete_answer(target: str) -> ServiceUnavailableError:
    """The stream ended in good order, but too early: something between cut it.

    Args:
        target: Where the call went.
    """
    message = f"the answer of the gateway at {target} ended too early"
    return ServiceUnavailableError(message, reason="INCOMPLETE_ANSWER")


def readable(error: grpc.aio.AioRpcError | grpc.Call, target: str) -> PagewireError:
    """Return the exception that a failed call stands for. Raise it `from error`.

    Args:
        error: Of the call.
        target: Where it went.
    """
    exc = from_rpc_error(error)
    if exc.reason in ("PEER_UNAVAILABLE", "CANCELLED_BY_PEER"):  # the transport's word
        message = f"the gateway at {target} cannot be reached, or the connection to it was lost"
        return ServiceUnavailableError(message, reason=exc.reason)
    return exc
