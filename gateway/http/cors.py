"""Cross-origin requests of browsers: preflights, and the headers that let a page read answers.

Starlette's middleware with refusals in OpenAI's shape. It stands outside of authentication, because
browsers send preflights without a key.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.config import CorsConfig
from gateway.http.errors import REASON_HEADER, bad_request_object
from gateway.http.json_response import json_response

_EXPOSED_HEADERS = ("x-request-id", "retry-after", REASON_HEADER)
_FORBIDDEN = 403


class Cors(CORSMiddleware):
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, config: CorsConfig) -> None:
        super().__init__(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=_EXPOSED_HEADERS,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        message = (
            f"a page of {request_headers['origin']} may not send this request; --allowed-origins,"
            " --allowed-methods and --allowed-headers say what may"
        )
        refusal = json_response(bad_request_object(message, _FORBIDDEN), _FORBIDDEN)
        for name in ("vary", "access-control-allow-origin"):
            if name in answer.headers:
                refusal.headers[name] = answer.headers[name]
        refusal.headers[REASON_HEADER] = "CORS_FORBIDDEN"
        return refusal
