"""The exceptions that the SDK raises, under one roof.

All are `PagewireError`s: the class tells the kind, `reason` the cause for programs, `message` what
to change, `field` the part of the request that is wrong, `retry_after_s` when to come again.
"""

from pagewire.client.errors import RequestCancelledError
from pagewire.kit.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PagewireError,
    PermissionDeniedError,
    QueueFullError,
    ServiceUnavailableError,
    UnauthenticatedError,
    UnimplementedError,
)
from pagewire.offline.errors import PromptsFailedError

__all__ = [
    "AlreadyExistsError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidRequestError",
    "NotFoundError",
    "PagewireError",
    "PermissionDeniedError",
    "PromptsFailedError",
    "QueueFullError",
    "RequestCancelledError",
    "ServiceUnavailableError",
    "UnauthenticatedError",
    "UnimplementedError",
]
