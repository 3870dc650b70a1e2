"""The exceptions that cross a service's edge, and their form as a gRPC status.

A service raises a `PagewireError`; the error interceptor turns it into a status with
google.rpc details (`to_rpc_status`), and a client turns the status back (`from_rpc_error`).
It does not know HTTP: the gateway maps these classes to its own answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

M = TypeVar("M", bound=Message)

ERROR_DOMAIN = "pagewire"
DETAILS_KEY = "grpc-status-details-bin"
NOT_BEGUN_HEADER = "x-not-begun"
"""Also of HTTP; its value is 1."""

# Trailers are HTTP/2 headers: peers refuse more than about 8 KiB, and the message travels twice.
_MAX_MESSAGE_CHARS = 1000
_MAX_METADATA_CHARS = 200
_MAX_METADATA_ENTRIES = 16


class PagewireError(Exception):
    """An error with a status code, a reason for programs and a message for people.

    The message reaches clients: it says what to change and holds no internals.

    Attributes:
        code: gRPC status code of the class.
        message: One sentence for people.
        reason: UPPER_SNAKE_CASE, stable, for programs.
        field: Path of the request's field that is wrong, if one is.
        metadata: More facts for programs.
        retry_after_s: Seconds after which another try makes sense, if one does.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        field: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s


class InvalidRequestError(PagewireError):
    """The request is wrong whatever the system's state; the same request never succeeds."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = "INVALID_REQUEST"


class UnauthenticatedError(PagewireError):
    """No valid credentials came with the request."""

    code = grpc.StatusCode.UNAUTHENTICATED
    default_reason = "UNAUTHENTICATED"


class PermissionDeniedError(PagewireError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    default_reason = "PERMISSION_DENIED"


class NotFoundError(PagewireError):
    """The named model, adapter or request does not exist."""

    code = grpc.StatusCode.NOT_FOUND
    default_reason = "NOT_FOUND"


class AlreadyExistsError(PagewireError):
    """An id is in use."""

    code = grpc.StatusCode.ALREADY_EXISTS
    default_reason = "ALREADY_EXISTS"


class QueueFullError(PagewireError):
    """A bounded queue is full; `retry_after_s` says when to come again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = "QUEUE_FULL"


class ServiceUnavailableError(PagewireError):
    """A service is not there, not ready, or draining; another try may succeed."""

    code = grpc.StatusCode.UNAVAILABLE
    default_reason = "UNAVAILABLE"


class NotBegunError(ServiceUnavailableError):
    """Nothing of the request was begun: whoever asks may ask another replica at once.

    A response with this error has the header `NOT_BEGUN_HEADER`, by which a mesh tells it from an
    answer that failed: that one may have been admitted, and a second try would run it twice.
    """

    default_reason = "NOT_READY"


class FailedPreconditionError(PagewireError):
    """The system's state forbids the call, for example a lease that somebody else holds."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = "FAILED_PRECONDITION"


class DeadlineExceededError(PagewireError):
    """The time that the caller gave has passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class UnimplementedError(PagewireError):
    """The call or parameter is known and not supported."""

    code = grpc.StatusCode.UNIMPLEMENTED
    default_reason = "UNIMPLEMENTED"


class InternalError(PagewireError):
    """A bug or a fault of ours."""


_ERROR_CLASSES: dict[grpc.StatusCode, type[PagewireError]] = {
    cls.code: cls
    for cls in (
        InvalidRequestError,
        UnauthenticatedError,
        PermissionDeniedError,
        NotFoundError,
        AlreadyExistsError,
        QueueFullError,
        ServiceUnavailableError,
        FailedPreconditionError,
        DeadlineExceededError,
        UnimplementedError,
        InternalError,
    )
}

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}  # type: ignore[index, unused-ignore]


def error_class(code: int) -> type[PagewireError]:
    """Return the class of a gRPC status code's number; unknown ones are internal errors."""
    return _ERROR_CLASSES.get(_CODES.get(code, grpc.StatusCode.INTERNAL), InternalError)


# What a status that is not ours may say comes from the transport or a proxy and names addresses
# and internals, so these codes get a message of our own.
_FOREIGN_MESSAGES: dict[grpc.StatusCode, tuple[type[PagewireError], str, str]] = {
    grpc.StatusCode.UNAVAILABLE: (
        ServiceUnavailableError,
        "PEER_UNAVAILABLE",
        "a service behind this one cannot be reached",
    ),
    grpc.StatusCode.CANCELLED: (
        ServiceUnavailableError,
        "CANCELLED_BY_PEER",
        "a service behind this one ended the call",
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        DeadlineExceededError,
        "DEADLINE_EXCEEDED",
        "the deadline passed before the call ended",
    ),
    grpc.StatusCode.UNIMPLEMENTED: (
        UnimplementedError,
        "UNIMPLEMENTED",
        "a service behind this one does not know the call; the versions may differ",
    ),
}


def to_rpc_status(exc: PagewireError) -> status_pb2.Status:
    """Return the google.rpc.Status with ErrorInfo, and BadRequest or RetryInfo where they apply.

    Long texts are cut, so that the status always fits into HTTP/2 trailers.
    """
    message = _cut(exc.message, _MAX_MESSAGE_CHARS)
    code: int = exc.code.value[0]  # type: ignore[index, unused-ignore]
    status = status_pb2.Status(code=code, message=message)
    info = error_details_pb2.ErrorInfo(reason=exc.reason, domain=ERROR_DOMAIN)
    for key, value in list(exc.metadata.items())[:_MAX_METADATA_ENTRIES]:
        info.metadata[key] = _cut(value, _MAX_METADATA_CHARS)
    status.details.add().Pack(info)
    if exc.field is not None:
        bad_request = error_details_pb2.BadRequest()
        description = _cut(message, _MAX_METADATA_CHARS)
        bad_request.field_violations.add(field=exc.field, description=description)
        status.details.add().Pack(bad_request)
    if exc.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(exc.retry_after_s * 1000))
        status.details.add().Pack(retry)
    return status


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], exc: PagewireError) -> NoReturn:
    """End the call with the status of `exc`; always raises grpc.aio.AbortError."""
    status = to_rpc_status(exc)
    trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
    if exc.retry_after_s is not None:
        # gRPC's own retry policies wait as long as this trailer says.
        trailers.append(("grpc-retry-pushback-ms", str(round(exc.retry_after_s * 1000))))
    if isinstance(exc, NotBegunError):
        trailers.append((NOT_BEGUN_HEADER, "1"))
    await context.abort(exc.code, status.message, trailing_metadata=tuple(trailers))


def from_rpc_error(error: grpc.aio.AioRpcError | grpc.Call) -> PagewireError:
    """Return the exception that a failed call stands for.

    A status without our ErrorInfo comes from the transport, a proxy or a foreign server: its text
    is not passed on where it may name addresses or internals. Raise the result `from error`.
    """
    code = error.code()
    status = _status_details(error.trailing_metadata() or ())
    info = _unpack(status, error_details_pb2.ErrorInfo())
    if info is None or info.domain != ERROR_DOMAIN:
        return _from_foreign(code, error.details() or "")
    violation = _unpack(status, error_details_pb2.BadRequest())
    retry = _unpack(status, error_details_pb2.RetryInfo())
    return _ERROR_CLASSES.get(code, InternalError)(
        error.details() or code.name,
        reason=info.reason,
        field=violation.field_violations[0].field if violation is not None else None,
        metadata=dict(info.metadata),
        retry_after_s=retry.retry_delay.ToMilliseconds() / 1000 if retry is not None else None,
    )


def _from_foreign(code: grpc.StatusCode, details: str) -> PagewireError:
    """Classify a status that carries no details of ours."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequestError("the message is too large", reason="MESSAGE_TOO_LARGE")
    if code in _FOREIGN_MESSAGES:
        cls, reason, message = _FOREIGN_MESSAGES[code]
        return cls(message, reason=reason)
    if code in _ERROR_CLASSES and code is not grpc.StatusCode.INTERNAL:
        return _ERROR_CLASSES[code](_cut(details or code.name, _MAX_MESSAGE_CHARS))
    message = "a service behind this one failed"
    return InternalError(message, reason="PEER_FAILED", metadata={"code": code.name})


def _status_details(trailers: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status:
    """Return the google.rpc.Status in the trailers; an empty one if there is none to be read."""
    for key, value in trailers:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return status_pb2.Status()
    return status_pb2.Status()


def _unpack(status: status_pb2.Status, message: M) -> M | None:
    """Fill `message` from the first detail of its type; None if the status has none."""
    for detail in status.details:
        if detail.TypeName() == message.DESCRIPTOR.full_name:
            return message if detail.Unpack(message) else None
    return None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
