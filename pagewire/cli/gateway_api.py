"""The gateway's HTTP API as commands ask it: one GET, one JSON object, one-line errors.

A key goes to the host that the user names and to no other: no redirect is followed, and a proxy of
the environment is meant for the web. It knows no path and no object: the commands do.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pagewire.kit.errors import ServiceUnavailableError

DEFAULT_URL = "http://127.0.0.1:8000"
MIN_WIDTH = 40
"""Columns, below which nothing is drawn."""

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_PLAIN_WIDTH = 100
"""Of what is no terminal."""


def check_url(url: str) -> None:
    """Check the URL of a gateway.

    Raises:
        ValueError: It is none.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError("url", url, "must begin with http:// or https:// and name a host")


def get_object(
    url: str, path: str, *, api_key: str | None, timeout_s: float, what: str
) -> Mapping[str, Any]:
    """Return the JSON object that the gateway answers.

    Args:
        url: Of its HTTP API.
        path: Below it, with its query.
        api_key: Sent along; None: none is.
        timeout_s: For the answer.
        what: What is asked for, in a word, for the error when it is not there.

    Raises:
        ServiceUnavailableError: It does not answer, or answers an error.
    """
    request = Request(url.rstrip("/") + path)
    if api_key is not None:
        request.add_header("authorization", f"Bearer {api_key}")
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            answer = json.loads(response.read(_MAX_ANSWER_BYTES))
    except HTTPError as exc:
        raise ServiceUnavailableError(_error_text(url, what, exc)) from exc
    except (URLError, HTTPException, TimeoutError, ConnectionError, ValueError) as exc:
        reason = getattr(exc, "reason", exc)
        message = f"no gateway answers at {url} ({reason}); name its HTTP API with --url"
        raise ServiceUnavailableError(message) from exc
    if not isinstance(answer, dict):
        raise ServiceUnavailableError(f"what answers at {url} is no pagewire gateway")
    return answer


def terminal_width() -> int:
    """Return how many columns there are to draw in."""
    if not sys.stdout.isatty():
        return _PLAIN_WIDTH
    return max(MIN_WIDTH, shutil.get_terminal_size().columns)


class _NoRedirects(HTTPRedirectHandler):
    """Leaves redirects to the caller, as errors."""

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        return None


_OPENER = build_opener(ProxyHandler({}), _NoRedirects)


def _error_text(url: str, what: str, exc: HTTPError) -> str:
    if 300 <= exc.code < 400:
        target = urljoin(exc.url, exc.headers.get("location", ""))
        return f"{url} redirects to {target}; name what you trust with the key by --url"
    try:
        message = str(json.loads(exc.read(_MAX_ANSWER_BYTES))["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError):
        message = f"what answers at {url} has no {what} (HTTP {exc.code})"
    return f"{message} (--api-key)" if exc.code == 401 else message
