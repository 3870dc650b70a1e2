"""JSON out: compact, UTF-8, and never failing on text that came from a client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from starlette.responses import Response

# Line ends to Unicode but not to SSE: clients that split an event stream with their language's
# splitlines would cut an event in two. JSON may have them escaped.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def to_json(value: Any) -> bytes:
    """Return compact JSON on one line; a lone surrogate, which UTF-8 does not have, becomes `?`."""
    return _to_utf8(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def text_to_json(text: str) -> bytes:
    """Return what `to_json` does for a string, in a fraction of the time."""
    return _to_utf8(encode_basestring(text))


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    return Response(to_json(value), status, headers, media_type="application/json")


def _to_utf8(text: str) -> bytes:
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode("utf-8", "replace")
