"""The public gRPC API: `InferenceService` over `request_service`.

Every handler reads its message with `convert`, and writes what comes. Nothing is written before
admission, so a refusal is the call's status; cancelling a call ends its handler, and with it the
generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc

from gateway import convert
from gateway.auth import check_bearer
from gateway.generation import GenerationRequest
from gateway.request_service import RequestService
from pagewire.kit.errors import UnimplementedError
from pagewire.v1 import inference_pb2, inference_pb2_grpc

R = TypeVar("R")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Thin: one `RequestService` behind it does the work."""

    def __init__(self, service: RequestService, api_keys: Sequence[str] = ()) -> None:
        self._service = service
        self._api_keys = api_keys

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        self._check(context)
        plan = convert.generate_request(request, _timeout_s(context))
        with_token_ids = convert.wants_token_ids(request)
        await self._stream(plan, with_token_ids, convert.generate_response, context)

    async def Chat(self, request: inference_pb2.ChatRequest, context: Context) -> None:  # type: ignore[override]
        self._check(context)
        plan = convert.chat_request(request, _timeout_s(context))
        with_token_ids = convert.wants_token_ids(request)
        await self._stream(plan, with_token_ids, convert.chat_response, context)

    async def Embed(
        self, request: inference_pb2.EmbedRequest, context: Context
    ) -> inference_pb2.EmbedResponse:
        raise UnimplementedError("Embed is not served yet")

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        self._check(context)
        prompt = convert.chat_prompt(request.messages) if request.messages else request.text
        token_ids = await self._service.tokenize(request.model, prompt)
        return inference_pb2.CountTokensResponse(num_tokens=len(token_ids))

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        self._check(context)
        special = not request.HasField("add_special_tokens") or request.add_special_tokens
        token_ids = await self._service.tokenize(request.model, request.text, special)
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.InferenceServiceDetokenizeRequest, context: Context
    ) -> inference_pb2.InferenceServiceDetokenizeResponse:
        self._check(context)
        text = await self._service.detokenize(
            request.model, request.token_ids, request.skip_special_tokens
        )
        return inference_pb2.InferenceServiceDetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        self._check(context)
        return convert.models_response(self._service.engines.models)

    async def _stream(
        self,
        request: GenerationRequest,
        with_token_ids: bool,
        wrap: Callable[[convert.Event], R],
        context: Context,
    ) -> None:
        async with self._service.generate(request) as generation:

            async def write(event: convert.Event) -> None:
                async with generation.deadline():  # a client may stop reading for good
                    await context.write(wrap(event))

            await write(convert.started(generation))
            async for outputs in generation.outputs():
                for event in convert.output_events(outputs, with_token_ids):
                    await write(event)
            await write(convert.usage_message(generation.usage))

    def _check(self, context: Context) -> None:
        metadata: Any = context.invocation_metadata() or ()
        given = next((value for key, value in metadata if key == "authorization"), None)
        check_bearer(given if isinstance(given, str) else None, self._api_keys)


def _timeout_s(context: Context) -> float | None:
    """Return the seconds that the client gave the call; None: it gave no deadline."""
    return context.time_remaining()
