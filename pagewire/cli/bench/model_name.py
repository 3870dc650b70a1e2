"""The name of the model that a server has, for those who give none."""

from __future__ import annotations

import json

from pagewire.cli.bench.http_connection import Endpoint, exchange
from pagewire.cli.bench.record import BenchRequestError

_TIMEOUT_S = 10.0


async def first_model(base_url: str, api_key: str | None) -> str:
    """Return the first name of /v1/models.

    Raises:
        ValueError: `base_url` is no URL.
        BenchRequestError: The server does not answer, or has no model.
    """
    endpoint = Endpoint.of(base_url, "/v1/models")
    pieces: list[bytes] = []
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = endpoint.request("GET", b"", headers)
    await exchange(endpoint, request, lambda body, _: pieces.append(body), _TIMEOUT_S)
    try:
        return str(json.loads(b"".join(pieces))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise BenchRequestError("/v1/models names no model; give it with --model") from None
