"""A gateway without an engine behind it: answers by echoing, and remembers what it was asked.

`Chat` answers with the words of the last message, `Generate` with those of the prompt, one delta a
word. Special texts: "refuse" is refused, "hang" gives one word and then nothing until cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.port_security import PortSecurity
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc

SERVICE_NAME = "pagewire.v1.InferenceService"


class FakeInferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Echoes. Belongs to one event loop."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.authorization: list[str | None] = []
        self.cancelled = asyncio.Event()

    async def Chat(self, request: Any, context: Any) -> AsyncIterator[Any]:
        text = request.messages[-1].content
        async for event in self._answer(request, context, text, inference_pb2.ChatResponse):
            yield event

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._answer(
            request, context, request.text, inference_pb2.GenerateResponse
        ):
            yield event

    async def _answer(
        self, request: Any, context: Any, text: str, response: Any
    ) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.authorization.append(dict(context.invocation_metadata()).get("authorization"))
        if text == "refuse":
            raise InvalidRequestError("the text is refused", field="text")
        yield response(started=inference_pb2.GenerationStarted(request_id="r", model="fake"))
        for word in text.split(" "):
            yield response(delta=_delta(response, f"{word} "))
            if word == "hang":
                await self._hang()
        reason = common_pb2.FINISH_REASON_STOP
        yield response(finished=inference_pb2.GenerationFinished(finish_reason=reason))
        yield response(usage=common_pb2.Usage(completion_tokens=1))

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


def _delta(response: Any, text: str) -> Any:
    if response is inference_pb2.ChatResponse:
        return inference_pb2.ChatDelta(content=text)
    return inference_pb2.GenerationDelta(text=text)


@asynccontextmanager
async def running_gateway(
    listen: str = "127.0.0.1:0",
    *,
    serving: bool = True,
    admin_listen: str | None = None,
    public: PortSecurity | None = None,
) -> AsyncIterator[tuple[Any, str]]:
    """Run a fake gateway; give the servicer and the target."""
    servicer = FakeInferenceService()

    def register(server: Any) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)

    config = ServerConfig(listen, admin_listen)
    server = ServiceServer(config, SERVICE_NAME, [register], public=public)
    await server.start()
    await server.set_serving(serving, "starting")
    try:
        yield servicer, server.address
    finally:
        await server.stop(0)
