"""Bearer tokens: whether a client may use the API. Shared by the HTTP and gRPC front doors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from pagewire.kit.errors import UnauthenticatedError

_SCHEME = "bearer "


def check_bearer(authorization: str | None, api_keys: Sequence[str]) -> None:
    """Check an Authorization header or metadata value; without keys everybody may.

    Raises:
        UnauthenticatedError: It holds none of the keys.
    """
    if not api_keys:
        return
    given = authorization or ""
    token = given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else ""
    # All are compared, in constant time, so that timing says nothing about a key.
    matches = [secrets.compare_digest(token.encode(), key.encode()) for key in api_keys]
    if not any(matches):
        raise UnauthenticatedError(
            "Incorrect API key provided; send it as `Authorization: Bearer KEY`",
            reason="INVALID_API_KEY",
        )
