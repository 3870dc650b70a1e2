"""JSON out: compact, UTF-8, and never failing on text that came from a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def to_json(value: Any) -> bytes:
    """Return compact JSON; a lone surrogate, which UTF-8 does not have, becomes `?`."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    return Response(to_json(value), status, headers, media_type="application/json")
