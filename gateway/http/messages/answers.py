"""Answers of the Messages API: the message as one object, or as typed events in Anthropic's order.

message_start; for each block its start, deltas and stop; message_delta with the reason why it ended
and with usage; message_stop. Errors before admission propagate, for an ordinary error answer; later
ones are an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.generation import (
    MAX_INLINE_WEIGHT,
    Finished,
    FinishReason,
    Output,
    Usage,
)
from gateway.http.disconnect import while_connected
from gateway.http.errors import error_object, to_pagewire_error
from gateway.http.event_stream import piece, send_last_words, start
from gateway.http.field_names import client_names
from gateway.http.json_response import json_response, to_json
from gateway.http.messages.blocks import ContentBlocks, Event
from gateway.http.messages.errors import messages_error
from gateway.http.messages.request import MessagesCall
from gateway.live_generation import Generation
from gateway.request_service import RequestService

R = TypeVar("R")

_PING: Event = {"type": "ping"}


class _Writer:
    """Turns the output of one generation into events, up to the whole message."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._parser = generation.messages.parser()
        self._blocks = ContentBlocks()
        self._weight = 0
        self.message: dict[str, Any] | None = None
        """The whole, once it is complete."""

    def begin(self) -> Iterator[Event]:
        yield {"type": "message_start", "message": self._object()}

    async def write(self, outputs: Sequence[Output], into: Callable[[Iterable[Event]], R]) -> R:
        """Return what `into` makes of the events of new outputs."""
        num_new = sum(output.weight for output in outputs)
        self._weight += num_new
        is_last = any(output.finished is not None for output in outputs)
        events = (event for output in outputs for event in self._take(output))
        # At the end all blocks are put together.
        if (self._weight if is_last else num_new) > MAX_INLINE_WEIGHT:
            return await asyncio.to_thread(into, events)
        return into(events)

    def _take(self, output: Output) -> Iterator[Event]:
        yield from self._blocks.add(self._parser.push(output.text))
        if output.finished is None:
            return
        yield from self._blocks.add(self._parser.finish())
        yield from self._blocks.finish()
        ending = _ending(output.finished, self._parser.has_calls)
        whole = self._object() | {"content": self._blocks.objects()} | ending
        yield {"type": "message_delta", "delta": ending, "usage": whole["usage"]}
        yield {"type": "message_stop"}
        self.message = whole

    def _object(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._generation.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._generation.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._generation.usage),
        }


class WholeMessage:
    """Answers with the whole message. An ASGI application."""

    def __init__(self, service: RequestService, call: MessagesCall) -> None:
        self._service = service
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responses: list[Response] = []

        async def generate() -> None:
            with client_names(self._call.field_names):
                async with self._service.generate(self._call.request) as generation:
                    writer = _Writer(generation)
                    async for outputs in generation.outputs():
                        await writer.write(outputs, _exhaust)
                    responses.append(json_response(writer.message))

        await while_connected(receive, generate())
        await responses[0](scope, receive, send)


class StreamedMessage:
    """Answers with typed events. An ASGI application."""

    def __init__(self, service: RequestService, call: MessagesCall, keep_alive_s: float) -> None:
        """Prepare a stream; one on which nothing is sent for `keep_alive_s` gets a ping."""
        self._service = service
        self._call = call
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        with client_names(self._call.field_names):
            async with self._service.generate(self._call.request) as generation:

                async def send_in_time(message: Message) -> None:
                    with generation.sending():  # a client may stop reading for good
                        await send(message)

                await send_in_time(start())
                try:
                    async for message in self._messages(generation):
                        await send_in_time(message)
                except Exception as exc:
                    error = messages_error(error_object(to_pagewire_error(exc)))
                    await send_last_words(send, _bytes([error]))

    async def _messages(self, generation: Generation) -> AsyncIterator[Message]:
        writer = _Writer(generation)
        yield piece(_bytes(writer.begin()))
        async for outputs in generation.outputs(self._keep_alive_s):
            body = await writer.write(outputs, _bytes) if outputs else _bytes([_PING])
            if body:
                yield piece(body)
        yield {"type": "http.response.body", "body": b""}


def _ending(finished: Finished, has_calls: bool) -> dict[str, Any]:
    if finished.reason is FinishReason.LENGTH:
        reason = "max_tokens"
    elif finished.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if has_calls else "end_turn"
    stop = finished.stop_string if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return Anthropic's usage: cached tokens are not among those of the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _bytes(events: Iterable[Event]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + to_json(event) + b"\n\n"
        for event in events
    )


def _exhaust(events: Iterable[Event]) -> None:
    """Let the blocks grow; nobody reads the events."""
    for _ in events:
        pass
