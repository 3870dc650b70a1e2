"""The output of a response as it grows: items, and the typed events that tell of them.

Text, reasoning and calls of functions each make an item; an item ends where the next begins. It is
fed with the events of the parsers (`message_events`) and knows nothing of HTTP.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.generation import ChatMessage
from gateway.http.responses.items import assistant_message, call_of

Event = dict[str, Any]
"""A typed event, without its sequence_number."""

_ID_BYTES = 24


class Item(Protocol):
    """One item of the output."""

    item_id: str

    def added(self) -> dict[str, Any]:
        """Return the item as it begins."""

    def whole(self, status: str) -> dict[str, Any]:
        """Return the item as it is so far."""

    def opening(self) -> Iterable[Event]:
        """Return the events between the item's beginning and its first delta."""

    def closing(self) -> Iterable[Event]:
        """Return the events between the item's last delta and its end."""


@dataclass(slots=True)
class MessageItem:
    """Text for the reader. Implements `Item`."""

    item_id: str
    with_logprobs: bool
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def added(self) -> dict[str, Any]:
        return self.whole("in_progress") | {"content": []}

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self.item_id, "type": "message", "status": status, "role": "assistant"}
        return item | {"content": [self._part()]}

    def opening(self) -> Iterable[Event]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield {"type": "response.content_part.added", "content_index": 0, "part": part}

    def delta(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Event:
        self.text += text
        self.logprobs += logprobs
        event = {"type": "response.output_text.delta", "content_index": 0, "delta": text}
        return event | {"logprobs": list(logprobs)}

    def closing(self) -> Iterable[Event]:
        done = {"type": "response.output_text.done", "content_index": 0, "text": self.text}
        yield done | {"logprobs": self.logprobs}
        yield {"type": "response.content_part.done", "content_index": 0, "part": self._part()}

    def _part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": []}
        return part | {"logprobs": self.logprobs if self.with_logprobs else []}


@dataclass(slots=True)
class ReasoningItem:
    """Text that the model wrote for itself. Implements `Item`."""

    item_id: str
    text: str = ""

    def added(self) -> dict[str, Any]:
        return self.whole("in_progress") | {"content": []}

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self.item_id, "type": "reasoning", "status": status, "summary": []}
        return item | {"content": [self._part()], "encrypted_content": None}

    def opening(self) -> Iterable[Event]:
        part = {"type": "reasoning_text", "text": ""}
        yield {"type": "response.content_part.added", "content_index": 0, "part": part}

    def delta(self, text: str) -> Event:
        self.text += text
        return {"type": "response.reasoning_text.delta", "content_index": 0, "delta": text}

    def closing(self) -> Iterable[Event]:
        yield {"type": "response.reasoning_text.done", "content_index": 0, "text": self.text}
        yield {"type": "response.content_part.done", "content_index": 0, "part": self._part()}

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


@dataclass(slots=True)
class CallItem:
    """A call of a function. Implements `Item`."""

    item_id: str
    call_id: str
    name: str
    arguments: str = ""

    def added(self) -> dict[str, Any]:
        return self.whole("in_progress")

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self.item_id, "type": "function_call", "status": status}
        return item | {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}

    def opening(self) -> Iterable[Event]:
        return ()

    def delta(self, text: str) -> Event:
        self.arguments += text
        return {"type": "response.function_call_arguments.delta", "delta": text}

    def closing(self) -> Iterable[Event]:
        done = {"type": "response.function_call_arguments.done", "name": self.name}
        yield done | {"arguments": self.arguments}


class OutputItems:
    """All items of one response, in order; each method yields the events of what it took in."""

    def __init__(self, with_logprobs: bool = False) -> None:
        self._with_logprobs = with_logprobs
        self._done: list[dict[str, Any]] = []
        self._items: list[Item] = []
        self._open: MessageItem | ReasoningItem | CallItem | None = None

    def text(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        """Take in text for the reader."""
        item = self._open
        if not isinstance(item, MessageItem):
            item = MessageItem(_new_id("msg"), self._with_logprobs)
            yield from self._begin(item)
        yield self._of_open(item.delta(text, logprobs))

    def reasoning(self, text: str) -> Iterator[Event]:
        """Take in text that the model wrote for itself."""
        item = self._open
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(_new_id("rs"))
            yield from self._begin(item)
        yield self._of_open(item.delta(text))

    def call(self, call_id: str, name: str) -> Iterator[Event]:
        """Take in the beginning of a call."""
        yield from self._begin(CallItem(_new_id("fc"), call_id, name))

    def arguments(self, text: str) -> Iterator[Event]:
        """Take in a piece of the arguments of the call that began last."""
        if isinstance(self._open, CallItem):
            yield self._of_open(self._open.delta(text))

    def finish(self, is_complete: bool) -> Iterator[Event]:
        """End the last item; an output without any becomes an empty message."""
        if not self._items:
            yield from self._begin(MessageItem(_new_id("msg"), self._with_logprobs))
        yield from self._end("completed" if is_complete else "incomplete")

    def objects(self) -> list[dict[str, Any]]:
        """Return the items that have ended."""
        return list(self._done)

    def turn(self) -> ChatMessage:
        """Return the output as one message of the assistant."""
        calls = [each for each in self._items if isinstance(each, CallItem)]
        return assistant_message(
            "".join(each.text for each in self._items if isinstance(each, MessageItem)),
            "".join(each.text for each in self._items if isinstance(each, ReasoningItem)),
            [call_of(each.call_id, each.name, each.arguments) for each in calls],
        )

    def _begin(self, item: MessageItem | ReasoningItem | CallItem) -> Iterator[Event]:
        yield from self._end("completed")
        self._open = item
        self._items.append(item)
        index = len(self._items) - 1
        yield {"type": "response.output_item.added", "output_index": index, "item": item.added()}
        yield from map(self._of_open, item.opening())

    def _end(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        yield from map(self._of_open, item.closing())
        self._open = None
        whole = item.whole(status)
        self._done.append(whole)
        index = len(self._items) - 1
        yield {"type": "response.output_item.done", "output_index": index, "item": whole}

    def _of_open(self, event: Event) -> Event:
        """Return an event of the open item with the place of that item."""
        item_id = self._items[-1].item_id
        return {**event, "item_id": item_id, "output_index": len(self._items) - 1}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(_ID_BYTES)}"
