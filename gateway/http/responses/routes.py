"""The endpoints under `/v1/responses`."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.access.readers import client_at_hand
from gateway.generation import ChatMessage
from gateway.http.fields import invalid
from gateway.http.json_response import json_response
from gateway.http.responses.answers import (
    FinishedResponse,
    ResponseWork,
    StreamedResponse,
    WholeResponse,
)
from gateway.http.responses.input_items import page_of
from gateway.http.responses.request import ResponseCall, read_response
from gateway.http.responses.store import ResponseStore, StoredResponse
from gateway.http.tokenize import ReadFields
from gateway.request_service import RequestService
from pagewire.kit.errors import InvalidRequestError


class ResponsesRoutes:
    """The endpoints. One object serves all requests, on one event loop."""

    def __init__(
        self,
        service: RequestService,
        store: ResponseStore,
        read: ReadFields,
        keep_alive_s: float,
    ) -> None:
        self._service = service
        self._store = store
        self._read = read
        self._keep_alive_s = keep_alive_s

    async def create(self, request: Request) -> Any:
        call: ResponseCall = await self._read(request, read_response)
        previous: tuple[ChatMessage, ...] = ()
        if call.previous_response_id is not None:
            stored = self._store.get(call.previous_response_id, "previous_response_id")
            previous = stored.conversation
        conversation = (*previous, *call.input)
        plan = call.generation_request(previous)
        on_finished = partial(self._keep, call, conversation)
        work = ResponseWork(self._service, call, plan, on_finished)
        return StreamedResponse(work, self._keep_alive_s) if call.stream else WholeResponse(work)

    async def retrieve(self, request: Request) -> Response:
        if request.query_params.get("stream", "false") != "false":
            raise invalid("stream", "a stored response comes whole; leave it out")
        stored = self._store.get(request.path_params["response_id"])
        return Response(stored.body, media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        stored = self._store.get(request.path_params["response_id"])
        return json_response(page_of(stored.input_items, request.query_params))

    async def delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        self._store.remove(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        self._store.get(request.path_params["response_id"])
        raise InvalidRequestError(
            "only a response with background=true can be cancelled, which this server does not"
            " make; to cancel one that runs, close its connection",
            reason="NOT_CANCELLABLE",
            field="response_id",
        )

    def _keep(
        self,
        call: ResponseCall,
        conversation: tuple[ChatMessage, ...],
        finished: FinishedResponse,
    ) -> None:
        if call.store:
            turns = (*conversation, finished.turn)
            kept = StoredResponse(
                finished.response_id, finished.body, turns, call.input_items, client_at_hand()
            )
            self._store.add(kept)
