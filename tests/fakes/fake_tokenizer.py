"""A tokenizer service whose tokens are bytes: id 0 to 255 is that byte, 256 BOS, 257 EOS.

A real gRPC server for tests of what calls one: `async with FakeTokenizer() as fake` listens on
`fake.target`. A chat renders as `<role>content` lines. It keeps what it saw (`requests`,
`num_streams`), and `lose_streams` breaks every open stream.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc

BOS, EOS, VOCAB_SIZE = 256, 257, 258
FINGERPRINT = hashlib.sha256(b"fake byte tokenizer").hexdigest()
MAX_PROMPT_BYTES = 1 << 20


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(token_ids: Any) -> str:
    return bytes(i for i in token_ids if i < BOS).decode("utf-8", "replace")


class _Output:
    """One request's text so far; the plain way: everything is searched again for every token."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.text, self.num_chars_out, self.num_tokens = "", 0, 0
        self.stop_index: int | None = None
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Any, last_is_stop_token: bool, end: bool) -> str:
        for position, token_id in enumerate(token_ids, 1):
            self.num_tokens += 1
            if token_id >= BOS or (last_is_stop_token and position == len(token_ids)):
                continue
            known, self.text = self.text, self.text + self.utf8.decode(bytes([token_id]))
            if self.num_tokens > self.opened.min_tokens and self._stops(len(known)):
                return self._shown(0)
        if end:
            self.text += self.utf8.decode(b"", final=True)
        hold = max((len(stop) - 1 for stop in self.opened.stop), default=0)
        return self._shown(0 if end or self.opened.include_stop_str_in_output else hold)

    def _stops(self, known: int) -> bool:
        hits = []
        for index, stop in enumerate(self.opened.stop):
            start = self.text.find(stop, max(0, known - len(stop) + 1))
            if start >= 0:
                hits.append((start + len(stop), index))
        if not hits:
            return False
        end, self.stop_index = min(hits)
        keep = self.opened.include_stop_str_in_output
        self.text = self.text[: end if keep else end - len(self.opened.stop[self.stop_index])]
        return True

    def _shown(self, hold: int) -> str:
        end = max(self.num_chars_out, len(self.text) - hold)
        shown, self.num_chars_out = self.text[self.num_chars_out : end], end
        return shown


class FakeTokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """The service and its server."""

    def __init__(self, fingerprint: str = FINGERPRINT, listen: str = "127.0.0.1:0") -> None:
        self.fingerprint, self.requests, self.num_streams = fingerprint, list[Any](), 0
        self.chat_error: Exception | None = None
        self.files = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"bos_token": "<s>"}'}
        self.is_stuck = False
        """Texts that come to be encoded get no answer."""
        self.got_request = asyncio.Event()
        self._lost = asyncio.Event()
        self._server = ServiceServer(
            ServerConfig(listen=listen),
            "pagewire.v1.TokenizerService",
            [lambda s: tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, s)],
        )

    async def __aenter__(self) -> Self:
        await self._server.start()
        await self._server.set_serving(True)
        self.target = self._server.address
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    def lose_streams(self) -> None:
        """Break every open stream with UNAVAILABLE."""
        self._lost.set()
        self._lost = asyncio.Event()

    async def GetTokenizerInfo(self, request: Any, context: Any) -> Any:
        return tokenizer_pb2.GetTokenizerInfoResponse(
            fingerprint=self.fingerprint,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[EOS],
            bos_token_id=BOS,
            has_chat_template=True,
            template_uses_tools=True,
            max_prompt_bytes=MAX_PROMPT_BYTES,
            tool_call_format="hermes",
        )

    async def Encode(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self.got_request.set()
        if self.is_stuck:
            await asyncio.Event().wait()
        if any(len(text.encode()) > MAX_PROMPT_BYTES for text in request.texts):
            raise InvalidRequestError("the text is too long", field="texts")
        special = request.add_special_tokens or not request.HasField("add_special_tokens")
        head = [BOS] if special and not request.bad_word_variants else []
        spaces = ("", " ") if request.bad_word_variants else ("",)
        rows = [head + encode(space + text) for text in request.texts for space in spaces]
        return tokenizer_pb2.EncodeResponse(rows=[common_pb2.TokenIds(ids=ids) for ids in rows])

    async def RenderChat(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        if self.chat_error is not None:
            raise self.chat_error
        if not request.messages:
            raise InvalidRequestError("a conversation needs a message", field="messages")
        text = "".join(f"<{message.role}>{message.content}\n" for message in request.messages)
        if request.continue_final_message:
            text = text.removesuffix("\n")
        elif request.add_generation_prompt or not request.HasField("add_generation_prompt"):
            text += "<assistant>"
        return tokenizer_pb2.RenderChatResponse(text=text, token_ids=encode(text))

    async def Decode(self, request: Any, context: Any) -> Any:
        return tokenizer_pb2.DecodeResponse(texts=[decode(row.ids) for row in request.rows])

    async def GetVocabulary(self, request: Any, context: Any) -> AsyncIterator[Any]:
        size = request.slice_size or VOCAB_SIZE
        tokens = [*(bytes([byte]) for byte in range(256)), b"<s>", b"</s>"]
        for first in range(0, VOCAB_SIZE, size):
            part = tokens[first : first + size]
            special = [i for i in (BOS, EOS) if first <= i < first + len(part)]
            yield tokenizer_pb2.GetVocabularyResponse(
                first_token_id=first, tokens=part, special_token_ids=special
            )

    async def GetTokenizerFiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        size = 1024 * 1024
        for name, content in self.files.items():
            for start in range(0, len(content), size):
                chunk = content[start : start + size]
                yield tokenizer_pb2.GetTokenizerFilesResponse(name=name, chunk=chunk)

    async def Detokenize(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        outputs: dict[int, _Output] = {}
        self.num_streams += 1
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            while (frame := await self._next(context, lost)) is not grpc.aio.EOF:
                if frame.frame:
                    yield _answer(frame, outputs)
                elif frame.HasField("heartbeat"):
                    yield tokenizer_pb2.DetokenizeResponse(heartbeat=frame.heartbeat)
                if frame.close:
                    return
        finally:
            lost.cancel()

    async def _next(self, context: Any, lost: asyncio.Future[Any]) -> Any:
        reading = asyncio.ensure_future(context.read())
        try:
            await asyncio.wait((reading, lost), return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise ServiceUnavailableError("the stream is lost")
            return reading.result()
        finally:
            reading.cancel()


def _answer(frame: Any, outputs: dict[int, _Output]) -> Any:
    answer = tokenizer_pb2.DetokenizeResponse(frame=frame.frame)
    for opened in frame.opens:
        outputs[opened.handle] = _Output(opened)
        if opened.output_token_ids:
            _row(answer, outputs, opened.handle, opened.output_token_ids, False, False)
    start = 0
    last = list(frame.last_is_stop_token) or [False] * len(frame.handles)
    columns = zip(frame.handles, frame.token_counts, last, frame.ends, strict=True)
    for handle, count, is_stop, end in columns:
        _row(answer, outputs, handle, frame.token_ids[start : start + count], is_stop, end)
        start += count
    for handle in frame.closes:
        outputs.pop(handle, None)
    answer.extra_token_bytes.extend(bytes([i]) if i < BOS else b"" for i in frame.extra_token_ids)
    return answer


def _row(answer: Any, outputs: dict[int, _Output], handle: int, ids: Any, *flags: bool) -> None:
    output = outputs.get(handle)
    if output is None:  # a stop string closed it meanwhile
        return
    answer.handles.append(handle)
    answer.texts.append(output.push(ids, *flags))
    answer.token_offsets.append(output.num_tokens)
    if output.stop_index is not None:
        answer.stop_handles.append(handle)
        answer.stop_indexes.append(output.stop_index)
        answer.stop_token_offsets.append(output.num_tokens)
    if output.stop_index is not None or flags[1]:
        del outputs[handle]
