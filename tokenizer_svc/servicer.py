"""The TokenizerService's RPCs: each reads its message, calls the engine, builds the answer.

The engine comes when the tokenizer is loaded; until then calls get UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc

from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.pulse import ProcessFigures, Pulse, no_figures
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
        self.process: Callable[[], ProcessFigures | None] = no_figures
        """Gives what heartbeats tell of this process."""

    async def GetTokenizerInfo(
        self, request: tokenizer_pb2.GetTokenizerInfoRequest, context: Context
    ) -> tokenizer_pb2.GetTokenizerInfoResponse:
        return convert.info_to_proto(self._engine())

    async def Encode(
        self, request: tokenizer_pb2.EncodeRequest, context: Context
    ) -> tokenizer_pb2.EncodeResponse:
        engine, begin_ns = self._engine(), time.monotonic_ns()
        if request.bad_word_variants:
            rows = await engine.encode_bad_words(request.texts)
        else:
            add_special_tokens = convert.flag(request, "add_special_tokens", True)
            rows = await engine.encode(request.texts, add_special_tokens)
        answer = convert.rows_to_proto(rows)
        answer.service_ns = time.monotonic_ns() - begin_ns
        return answer

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: Context
    ) -> tokenizer_pb2.RenderChatResponse:
        begin_ns = time.monotonic_ns()
        chat = convert.chat_from_proto(request)
        rendered = await self._engine().render_chat(chat, request.ByteSize())
        answer = convert.rendered_to_proto(rendered)
        answer.service_ns = time.monotonic_ns() - begin_ns
        return answer

    async def Decode(
        self, request: tokenizer_pb2.DecodeRequest, context: Context
    ) -> tokenizer_pb2.DecodeResponse:
        begin_ns = time.monotonic_ns()
        rows = [row.ids for row in request.rows]
        skip_special_tokens = convert.flag(request, "skip_special_tokens", True)
        texts = await self._engine().decode(rows, skip_special_tokens)
        return tokenizer_pb2.DecodeResponse(texts=texts, service_ns=time.monotonic_ns() - begin_ns)

    # The writing form of a stream handler, which the stubs' types don't know.
    async def Detokenize(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeRequest],
        context: Context,
    ) -> None:
        engine = self._engine()
        session = DetokenizeSession(engine.model, engine.counters)
        pulse = Pulse(self.process)
        # On its own: a call that ends while its first write is under way, which would carry the
        # metadata, can be given no status.
        await context.send_initial_metadata(())
        await DetokenizeStream(session, context, self.draining, pulse=pulse).serve()

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
