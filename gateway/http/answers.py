"""An answer that a generation makes, streamed or whole, for either endpoint.

It owns the order of things: admission before the first byte, events as they come, an abort when
the client goes. The shapes of the JSON objects come from the endpoint (`Shape`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.generation import MAX_INLINE_WEIGHT, GenerationRequest, Output, Usage
from gateway.http.disconnect import while_connected
from gateway.http.errors import error_object, to_pagewire_error
from gateway.http.event_stream import KEEP_ALIVE, piece, send_last_words, start
from gateway.http.field_names import with_client_names
from gateway.http.json_response import json_response, to_json
from gateway.http.parameters import StreamOptions
from gateway.http.text_chunks import TextChunks
from gateway.live_generation import Generation
from gateway.request_service import RequestService

_DONE = b"data: [DONE]\n\n"


class Shape(Protocol):
    """How one endpoint writes its objects; made for one request, and may keep what it needs."""

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        """Return what a stream begins with."""

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        """Return the chunks for new output."""

    def plain_text(self, output: Output) -> str | None:
        """Return the new text where that is all there is to say, so that `text_chunk` says it."""

    def text_chunk(self, generation: Generation, index: int, text: str) -> dict[str, Any]:
        """Return the chunk for text alone, which `plain_text` gave; not for the first output."""

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        """Return a chunk without choices, for usage."""

    def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
        """Return the whole answer; outputs are merged and in the order of their index."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a body asks for."""

    request: GenerationRequest
    shape: Shape
    stream_options: StreamOptions | None = None
    """None: the answer comes whole."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """What the client calls fields, by our names, where they differ."""


def answer(service: RequestService, call: Call, keep_alive_s: float) -> ASGIApp:
    """Return the ASGI application that answers the call.

    Args:
        service: Generates.
        call: What the client asks for.
        keep_alive_s: A stream on which nothing is sent for so long gets a comment.
    """
    options = call.stream_options
    app: ASGIApp = WholeAnswer(service, call.request, call.shape)
    if options is not None:
        app = StreamedAnswer(service, call.request, call.shape, options, keep_alive_s)
    return with_client_names(app, call.field_names)


def object_head(generation: Generation, id_prefix: str, kind: str) -> dict[str, Any]:
    """Return what all objects of one answer have in common."""
    return {
        "id": f"{id_prefix}-{generation.request_id}",
        "object": kind,
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.system_fingerprint,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage object."""
    details = {}
    if usage.reasoning_tokens is not None:
        details["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **details,
    }


def stop_reason(output: Output) -> int | str | None:
    """Return the stop token or string that ended the output; None for end-of-sequence."""
    if output.finished is None:
        return None
    if output.finished.stop_string is not None:
        return output.finished.stop_string
    return output.finished.stop_token_id


class WholeAnswer:
    """Answers with one JSON object once everything has finished. An ASGI application."""

    def __init__(self, service: RequestService, request: GenerationRequest, shape: Shape) -> None:
        self._service = service
        self._request = request
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        merged: dict[int, Output] = {}
        responses: list[Response] = []

        async def generate() -> None:
            async with self._service.generate(self._request) as generation:
                async for outputs in generation.outputs():
                    for output in outputs:
                        merged.setdefault(output.index, Output(output.index)).extend(output)
                ordered = [merged[index] for index in sorted(merged)]
                if _is_long(ordered):
                    responses.append(await asyncio.to_thread(self._write, generation, ordered))
                else:
                    responses.append(self._write(generation, ordered))

        await while_connected(receive, generate())
        await responses[0](scope, receive, send)

    def _write(self, generation: Generation, outputs: list[Output]) -> Response:
        whole = self._shape.whole(generation, outputs)
        whole["usage"] = usage_object(generation.usage)
        return json_response(whole)


class StreamedAnswer:
    """Answers with server-sent events. An ASGI application.

    Errors before admission propagate, for an ordinary error answer; later ones are an event.
    """

    def __init__(
        self,
        service: RequestService,
        request: GenerationRequest,
        shape: Shape,
        options: StreamOptions,
        keep_alive_s: float | None = None,
    ) -> None:
        self._service = service
        self._request = request
        self._shape = shape
        self._options = options
        self._keep_alive_s = keep_alive_s
        self._texts: TextChunks | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        async with self._service.generate(self._request) as generation:

            async def send_in_time(message: Message) -> None:
                with generation.sending():  # a client may stop reading for good
                    await send(message)

            await send_in_time(start())
            try:
                await self._send_events(generation, send_in_time)
                await send_in_time({"type": "http.response.body", "body": _DONE})
            except Exception as exc:
                error = error_object(to_pagewire_error(exc))
                await send_last_words(send, _events([error]) + _DONE)
            finally:
                self._texts = None  # it calls us: a cycle, which would keep the generation

    async def _send_events(self, generation: Generation, send: Send) -> None:
        first = self._with_usage(generation, self._shape.first_chunks(generation))
        await _send(send, _events(first))
        async for outputs in generation.outputs(self._keep_alive_s):
            if not outputs:
                await send(KEEP_ALIVE)
            elif _is_long(outputs):
                await _send(send, await asyncio.to_thread(self._write, generation, outputs))
            else:
                await _send(send, self._write(generation, outputs))
        if self._options.include_usage:
            chunk = self._shape.usage_chunk(generation)
            chunk["usage"] = usage_object(generation.usage)
            await _send(send, _events([chunk]))

    def _write(self, generation: Generation, outputs: list[Output]) -> bytes:
        return b"".join([self._write_one(generation, output) for output in outputs])

    def _write_one(self, generation: Generation, output: Output) -> bytes:
        text = None if self._options.continuous_usage_stats else self._shape.plain_text(output)
        if text is None:
            return _events(self._with_usage(generation, self._shape.chunks(generation, output)))
        return self._text_chunks(generation).event(output.index, text) if text else b""

    def _text_chunks(self, generation: Generation) -> TextChunks:
        if self._texts is None:

            def chunk(index: int, text: str) -> dict[str, Any]:
                plain = self._shape.text_chunk(generation, index, text)
                return next(iter(self._with_usage(generation, [plain])))

            self._texts = TextChunks(chunk)
        return self._texts

    def _with_usage(
        self, generation: Generation, chunks: Iterable[dict[str, Any]]
    ) -> Iterable[dict[str, Any]]:
        """With usage asked for, all chunks have the field; its value is null until the end."""
        options = self._options
        for chunk in chunks:
            if options.include_usage:
                current = options.continuous_usage_stats
                chunk["usage"] = usage_object(generation.usage) if current else None
            yield chunk


def _is_long(outputs: list[Output]) -> bool:
    """Whether writing them would hold up the event loop."""
    return sum(output.weight for output in outputs) > MAX_INLINE_WEIGHT


def _events(chunks: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + to_json(chunk) + b"\n\n" for chunk in chunks)


async def _send(send: Send, body: bytes) -> None:
    """Send events in one piece; waits while the client's connection is full."""
    if body:
        await send(piece(body))
