"""The TokenizerService's RPCs: each reads its message, calls the engine, builds the answer.

The engine comes when the tokenizer is loaded; until then calls get UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from pagewire.kit.errors import ServiceUnavailableError
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tokenizer_svc import convert
from tokenizer_svc.detokenize_session import DetokenizeSession
from tokenizer_svc.detokenize_stream import DetokenizeStream
from tokenizer_svc.tokenizer_engine import TokenizerEngine

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_SLICE_SIZE = 8192
_MAX_SLICE_SIZE = 65_536


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Belongs to one event loop. `draining` ends its streams as soon as they are idle."""

    def __init__(self) -> None:
        self.engine: TokenizerEngine | None = None
        self.draining = asyncio.Event()

    async def GetTokenizerInfo(
        self, request: tokenizer_pb2.GetTokenizerInfoRequest, context: Context
    ) -> tokenizer_pb2.GetTokenizerInfoResponse:
        return convert.info_to_proto(self._engine())

    async def Encode(
        self, request: tokenizer_pb2.EncodeRequest, context: Context
    ) -> tokenizer_pb2.EncodeResponse:
        engine = self._engine()
        if request.bad_word_variants:
            return convert.rows_to_proto(await engine.encode_bad_words(request.texts))
        add_special_tokens = convert.flag(request, "add_special_tokens", True)
        return convert.rows_to_proto(await engine.encode(request.texts, add_special_tokens))

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: Context
    ) -> tokenizer_pb2.RenderChatResponse:
        chat = convert.chat_from_proto(request)
        return convert.rendered_to_proto(await self._engine().render_chat(chat, request.ByteSize()))

    async def Decode(
        self, request: tokenizer_pb2.DecodeRequest, context: Context
    ) -> tokenizer_pb2.DecodeResponse:
        rows = [row.ids for row in request.rows]
        skip_special_tokens = convert.flag(request, "skip_special_tokens", True)
        return tokenizer_pb2.DecodeResponse(
            texts=await self._engine().decode(rows, skip_special_tokens)
        )

    # The writing form of a stream handler, which the stubs' types don't know.
    async def Detokenize(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeRequest],
        context: Context,
    ) -> None:
        session = DetokenizeSession(self._engine().model)
        await DetokenizeStream(session, context, self.draining).serve()

    async def GetVocabulary(
        self, request: tokenizer_pb2.GetVocabularyRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        slice_size = min(request.slice_size or _SLICE_SIZE, _MAX_SLICE_SIZE)
        for part in convert.vocabulary_slices(self._engine(), slice_size):
            yield part

    async def GetTokenizerFiles(
        self, request: tokenizer_pb2.GetTokenizerFilesRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetTokenizerFilesResponse]:
        for name, content in self._engine().model.files.items():
            for chunk in convert.file_chunks(name, content):
                yield chunk

    def _engine(self) -> TokenizerEngine:
        if self.engine is None:
            raise ServiceUnavailableError("the tokenizer is being loaded", retry_after_s=1.0)
        return self.engine
