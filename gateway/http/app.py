"""The routes of the HTTP API.

`gateway.http.scope` puts around them what every request passes. Endpoints read a body, build a
`GenerationRequest` and hand it to an answer of `answers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from gateway.access.own_figures import OwnFigures
from gateway.access.readers import Readers
from gateway.config import RequestLimits
from gateway.http.answers import Call, answer
from gateway.http.bodies import read_json
from gateway.http.chat import read_chat
from gateway.http.completions import read_completion
from gateway.http.fields import Fields
from gateway.http.json_response import json_response
from gateway.http.known_names import UnknownNames
from gateway.http.map import map_route
from gateway.http.messages import errors as messages_errors
from gateway.http.messages.routes import MessagesRoutes
from gateway.http.openapi.document import TOKENIZER_INFO, openapi_json
from gateway.http.page.routes import page_routes
from gateway.http.responses.routes import ResponsesRoutes
from gateway.http.responses.store import ResponseStore
from gateway.http.tokenize import TokenizeRoutes
from gateway.http.traces import TraceRoutes
from gateway.map.live_map import LiveMap
from gateway.metrics import GatewayMetrics
from gateway.request_service import RequestService
from gateway.token_service import TokenService
from gateway.trace.recorder import TraceRecorder
from pagewire import __version__
from pagewire.kit import context
from pagewire.kit.errors import NotFoundError

_OWNER = "pagewire"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the HTTP API needs of the configuration."""

    limits: RequestLimits
    body_timeout_s: float
    keep_alive_s: float = 15.0
    tokenizer_info: bool = False
    """Whether /tokenizer_info is served."""


def build_app(
    service: RequestService,
    tokens: TokenService,
    metrics: GatewayMetrics,
    settings: HttpSettings,
    traces: TraceRecorder | None = None,
    live_map: LiveMap | None = None,
) -> ASGIApp:
    """Return the routes; `scope.guarded` puts around them what every request passes."""
    recorder = traces or TraceRecorder()
    api = _Api(service, metrics, settings, recorder.readers)
    tokenize = TokenizeRoutes(tokens, api.read)
    limits = settings.limits
    store = ResponseStore(limits.max_stored_responses, limits.max_stored_response_bytes)
    responses = ResponsesRoutes(service, store, api.read, settings.keep_alive_s)
    requests = TraceRoutes(recorder)
    messages = MessagesRoutes(service, tokens, api.read, settings.keep_alive_s)
    return Router(
        [
            Route("/v1/models", api.models),
            Route("/v1/models/{model:path}", api.model),
            Route("/v1/completions", api.completions, methods=["POST"]),
            Route("/v1/chat/completions", api.chat_completions, methods=["POST"]),
            Route("/v1/responses", responses.create, methods=["POST"]),
            Route("/v1/responses/{response_id}", responses.retrieve),
            Route("/v1/responses/{response_id}", responses.delete, methods=["DELETE"]),
            Route("/v1/responses/{response_id}/input_items", responses.input_items),
            Route("/v1/responses/{response_id}/cancel", responses.cancel, methods=["POST"]),
            Route(messages_errors.PATH, messages.create, methods=["POST"]),
            Route(f"{messages_errors.PATH}/count_tokens", messages.count_tokens, methods=["POST"]),
            Route("/v1/requests", requests.listed),
            Route("/v1/requests/{request_id:path}/trace", requests.trace),
            *([map_route(live_map)] if live_map is not None else ()),
            Route("/tokenize", tokenize.tokenize, methods=["POST"]),
            Route("/detokenize", tokenize.detokenize, methods=["POST"]),
            Route("/health", api.health),
            Route("/load", api.load),
            Route("/ping", api.health, methods=["GET", "POST"]),
            Route("/version", api.version),
            Route("/metrics", api.metrics),
            Route("/openapi.json", api.openapi),
            *([Route(TOKENIZER_INFO, tokenize.tokenizer_info)] if settings.tokenizer_info else ()),
            *page_routes(),
        ],
        redirect_slashes=False,
    )


class _Api:
    """The endpoints."""

    def __init__(
        self,
        service: RequestService,
        metrics: GatewayMetrics,
        settings: HttpSettings,
        readers: Readers,
    ) -> None:
        self._service = service
        self._figures = OwnFigures(metrics.registry, readers.may_read)
        self._settings = settings
        self._unknown = UnknownNames()
        max_prompts = settings.limits.max_outputs_per_request
        self._read_completion = partial(read_completion, max_prompts=max_prompts)

    async def completions(self, request: Request) -> Any:
        return await self._generate(request, self._read_completion)

    async def chat_completions(self, request: Request) -> Any:
        return await self._generate(request, read_chat)

    async def models(self, request: Request) -> Response:
        data = [self._model(name) for name in self._service.engines.models]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._service.engines.models:
            message = f"The model `{name}` does not exist"
            raise NotFoundError(message, reason="MODEL_NOT_FOUND", field="model")
        return json_response(self._model(name))

    async def health(self, request: Request) -> Response:
        self._service.readiness.check()
        return json_response({"status": "ok"})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def load(self, request: Request) -> Response:
        return json_response({"server_load": self._service.num_live_requests})

    async def openapi(self, request: Request) -> Response:
        return Response(openapi_json(self._settings.tokenizer_info), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        # Milliseconds for each replica, which clients' tokens need not wait for.
        body = await asyncio.to_thread(generate_latest, self._figures)
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def read(self, request: Request, read: Callable[[Fields], R]) -> R:
        """Return what `read` makes of the request's body."""
        settings = self._settings
        fields, value = await read_json(
            request,
            read,
            max_bytes=settings.limits.max_body_bytes,
            timeout_s=settings.body_timeout_s,
        )
        self._unknown.note(fields)
        return value

    async def _generate(self, request: Request, read: Callable[[Fields], Call]) -> ASGIApp:
        call = await self.read(request, read)
        if context.REQUEST_ID_KEY in request.headers:
            # The header's id, which is bound already, goes before one in the body.
            call = replace(call, request=replace(call.request, request_id=""))
        return answer(self._service, call, self._settings.keep_alive_s)

    def _model(self, name: str) -> dict[str, Any]:
        model = self._service.engines.models[name]
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": _OWNER,
            "root": name,
            "parent": None,
            "max_model_len": model.max_model_len,
        }
