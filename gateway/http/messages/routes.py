"""The endpoints under `/v1/messages`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.json_response import json_response
from gateway.http.messages.answers import StreamedMessage, WholeMessage
from gateway.http.messages.request import CountCall, MessagesCall, read_call, read_count
from gateway.http.tokenize import ReadFields
from gateway.request_service import RequestService
from gateway.token_service import TokenService


class MessagesRoutes:
    """The endpoints. One object serves all requests, on one event loop."""

    def __init__(
        self,
        service: RequestService,
        tokens: TokenService,
        read: ReadFields,
        keep_alive_s: float,
    ) -> None:
        self._service = service
        self._tokens = tokens
        self._read = read
        self._keep_alive_s = keep_alive_s

    async def create(self, request: Request) -> Any:
        call: MessagesCall = await self._read(request, read_call)
        if call.stream:
            return StreamedMessage(self._service, call, self._keep_alive_s)
        return WholeMessage(self._service, call)

    async def count_tokens(self, request: Request) -> Response:
        call: CountCall = await self._read(request, read_count)
        tokenized = await self._tokens.tokenize(call.model, call.prompt)
        return json_response({"input_tokens": len(tokenized.token_ids)})
