"""The public gRPC API: `InferenceService` over `request_service`.

Every handler reads its message with `convert.requests` and writes what comes as `convert.events`.
Nothing is written before admission, so a refusal is the call's status; cancelling a call ends its
handler, and with it the generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeAlias

import grpc

from gateway.convert import requests
from gateway.convert.batch import WholeOutputs, batch_request
from gateway.convert.chat import ChatEvents, chat_request
from gateway.convert.events import Events, GenerateEvents, Response
from gateway.generation import MAX_INLINE_WEIGHT, GenerationRequest
from gateway.request_service import RequestService
from gateway.stream_writer import StreamWriter
from gateway.token_service import TokenService
from pagewire.kit.errors import UnimplementedError
from pagewire.v1 import inference_pb2, inference_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Thin: `RequestService` and `TokenService` behind it do the work."""

    def __init__(self, service: RequestService, tokens: TokenService) -> None:
        self._service = service
        self._tokens = tokens

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        plan = requests.generate_request(request, context.time_remaining())
        await self._stream(plan, GenerateEvents(request.response.return_token_ids), context)

    async def Chat(self, request: inference_pb2.ChatRequest, context: Context) -> None:  # type: ignore[override]
        plan = chat_request(request, context.time_remaining())
        await self._stream(plan, ChatEvents(request.response.return_token_ids), context)

    async def GenerateBatch(  # type: ignore[override]
        self, request: inference_pb2.GenerateBatchRequest, context: Context
    ) -> None:
        plan = batch_request(request, context.time_remaining())
        async with self._service.generate(plan) as generation:
            await _tell_begun(context)
            whole = WholeOutputs(generation, plan.n, request.response.return_token_ids)
            async for outputs in generation.outputs():
                if (ended := whole.take(outputs)) is not None:
                    with generation.sending():
                        await context.write(ended)

    async def Embed(
        self, request: inference_pb2.EmbedRequest, context: Context
    ) -> inference_pb2.EmbedResponse:
        raise UnimplementedError("Embed is not served yet")

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        prompt, special = requests.prompt_to_tokenize(request)
        tokenized = await self._tokens.tokenize(request.model, prompt, special)
        return inference_pb2.CountTokensResponse(
            num_tokens=len(tokenized.token_ids), max_model_len=tokenized.max_model_len
        )

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        prompt, special = requests.prompt_to_tokenize(request)
        tokenized = await self._tokens.tokenize(request.model, prompt, special)
        ids = tokenized.token_ids
        return inference_pb2.TokenizeResponse(
            token_ids=ids,
            token_texts=await self._tokens.token_texts(ids) if request.return_token_texts else (),
            max_model_len=tokenized.max_model_len,
        )

    async def Detokenize(
        self, request: inference_pb2.InferenceServiceDetokenizeRequest, context: Context
    ) -> inference_pb2.InferenceServiceDetokenizeResponse:
        text = await self._tokens.detokenize(
            request.model, request.token_ids, request.skip_special_tokens, "token_ids"
        )
        return inference_pb2.InferenceServiceDetokenizeResponse(text=text)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        return requests.models_response(self._service.engines.models)

    async def _stream(self, request: GenerationRequest, events: Events, context: Context) -> None:
        async with (
            self._service.generate(request) as generation,
            # Watched, as a client may stop reading for good.
            StreamWriter[Response](context.write, generation.sending()) as writer,
        ):
            await _tell_begun(context)
            await writer.write(events.started(generation))
            async for outputs in generation.outputs(before_each=writer.finish):
                written: Iterable[Response] = events.outputs(outputs)
                if sum([output.weight for output in outputs]) > MAX_INLINE_WEIGHT:
                    written = await asyncio.to_thread(list, written)
                for event in written:
                    await writer.write(event)
            await writer.write(events.usage(generation.usage))


async def _tell_begun(context: Context) -> None:
    """Send the metadata, which no client holds up by not reading, before the first message.

    With a message, they would count as sent once that is: the status after a first message that is
    given up would bring them again, which gRPC refuses, and the client would wait for ever.
    """
    await context.send_initial_metadata(())
