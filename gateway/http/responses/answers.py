"""Answers of the Responses API: the response as one object, or as typed events in OpenAI's order.

created, in_progress; for each item its beginning, deltas and end; completed, incomplete or failed.
Each event has a sequence_number, from 0. Errors before admission propagate, for an ordinary error
answer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.generation import (
    MAX_INLINE_WEIGHT,
    ChatMessage,
    FinishReason,
    GenerationRequest,
    Output,
    TokenLogprobs,
)
from gateway.http.disconnect import while_connected
from gateway.http.errors import to_pagewire_error
from gateway.http.event_stream import KEEP_ALIVE, piece, send_last_words, start
from gateway.http.field_names import client_names
from gateway.http.json_response import to_json
from gateway.http.logprobs import TokenFormat, chat_logprobs
from gateway.http.responses.output_items import Event, OutputItems
from gateway.http.responses.request import FIELD_NAMES, ResponseCall
from gateway.http.responses.response_object import ResponseObject
from gateway.live_generation import Generation
from gateway.message_events import Content, Reasoning
from gateway.request_service import RequestService

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FinishedResponse:
    """What there is to keep of a response."""

    response_id: str
    body: bytes
    """The response as JSON."""
    turn: ChatMessage
    """The output as one message of the assistant."""


OnFinished = Callable[[FinishedResponse], None]


class _Writer:
    """Turns the outputs of one generation into events, up to the finished response."""

    def __init__(self, call: ResponseCall, generation: Generation) -> None:
        self.items = OutputItems(call.with_logprobs)
        self.response = ResponseObject(call, generation)
        self.finished: FinishedResponse | None = None
        self._parser = generation.messages.parser()
        self._num_top = call.sampling.get("logprobs") or 0
        self._logprobs: list[TokenLogprobs] = []
        self._weight = 0

    def begin(self) -> Iterator[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield {"type": kind, "response": self.response.in_progress()}

    async def write(self, outputs: Sequence[Output], into: Callable[[Iterable[Event]], R]) -> R:
        """Return what `into` makes of the events of new outputs."""
        num_new = sum(output.weight for output in outputs)
        self._weight += num_new
        is_last = any(output.finished is not None for output in outputs)
        events = (event for output in outputs for event in self._take(output))
        # The last events say everything again.
        if (self._weight if is_last else num_new) > MAX_INLINE_WEIGHT:
            return await asyncio.to_thread(into, events)
        return into(events)

    def _take(self, output: Output) -> Iterator[Event]:
        self._logprobs += output.logprobs
        parsed = self._parser.push(output.text)
        if output.finished is not None:
            parsed += self._parser.finish()
        for event in parsed:
            if isinstance(event, Content):
                yield from self.items.text(event.text, self._take_logprobs())
            elif isinstance(event, Reasoning):
                self._logprobs.clear()
                yield from self.items.reasoning(event.text)
            else:
                if event.name:
                    yield from self.items.call(event.id, event.name)
                if event.arguments:
                    yield from self.items.arguments(event.arguments)
        if output.finished is not None:
            yield from self._finish(output.finished.reason)

    def fail(self, message: str) -> Event:
        response = self.response.failed(self.items.objects(), message)
        return {"type": "response.failed", "response": response}

    def _finish(self, reason: FinishReason) -> Iterator[Event]:
        is_complete = reason is not FinishReason.LENGTH
        yield from self.items.finish(is_complete)
        response = self.response.finished(self.items.objects(), is_complete)
        self.finished = FinishedResponse(response["id"], to_json(response), self.items.turn())
        yield {"type": f"response.{response['status']}", "response": response}

    def _take_logprobs(self) -> list[dict[str, Any]]:
        """Return the logprobs of the tokens since the last text."""
        content = chat_logprobs(self._logprobs, self._num_top, TokenFormat())["content"]
        self._logprobs = []
        return list(content)


@dataclass(frozen=True, slots=True)
class ResponseWork:
    """What an answer is made from."""

    service: RequestService
    call: ResponseCall
    request: GenerationRequest
    on_finished: OnFinished

    @asynccontextmanager
    async def generate(self) -> AsyncIterator[Generation]:
        """Admit the request, as `RequestService.generate`."""
        with client_names(FIELD_NAMES):
            async with self.service.generate(self.request) as generation:
                yield generation


class WholeResponse:
    """Answers with the finished response. An ASGI application."""

    def __init__(self, work: ResponseWork) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, finished = self._work, list[FinishedResponse]()

        async def generate() -> None:
            async with work.generate() as generation:
                writer = _Writer(work.call, generation)
                async for outputs in generation.outputs():
                    await writer.write(outputs, _exhaust)
                if writer.finished is not None:
                    work.on_finished(writer.finished)
                    finished.append(writer.finished)

        await while_connected(receive, generate())
        answer = Response(finished[0].body, media_type="application/json")
        await answer(scope, receive, send)


class StreamedResponse:
    """Answers with typed events. An ASGI application."""

    def __init__(self, work: ResponseWork, keep_alive_s: float) -> None:
        """Prepare a stream; one on which nothing is sent for `keep_alive_s` gets a comment."""
        self._work = work
        self._keep_alive_s = keep_alive_s
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        work = self._work
        async with work.generate() as generation:

            async def send_in_time(message: Message) -> None:
                with generation.sending():  # a client may stop reading for good
                    await send(message)

            writer = _Writer(work.call, generation)
            await send_in_time(start())
            try:
                async for message in self._messages(generation, writer):
                    await send_in_time(message)
            except Exception as exc:
                error = to_pagewire_error(exc)
                await send_last_words(send, self._bytes([writer.fail(error.message)]))

    async def _messages(self, generation: Generation, writer: _Writer) -> AsyncIterator[Message]:
        yield piece(self._bytes(writer.begin()))
        async for outputs in generation.outputs(self._keep_alive_s):
            if not outputs:
                yield KEEP_ALIVE
            body = await writer.write(outputs, self._bytes)
            if writer.finished is not None:  # kept before the client knows its id to be of use
                self._work.on_finished(writer.finished)
            if body:
                yield piece(body)
        yield {"type": "http.response.body", "body": b""}

    def _bytes(self, events: Iterable[Event]) -> bytes:
        return b"".join(self._event(event) for event in events)

    def _event(self, event: Event) -> bytes:
        numbered = event | {"sequence_number": next(self._numbers)}
        kind = str(event["type"]).encode()
        return b"event: " + kind + b"\ndata: " + to_json(numbered) + b"\n\n"


def _exhaust(events: Iterable[Event]) -> None:
    """Let the items grow; nobody reads the events."""
    for _ in events:
        pass
