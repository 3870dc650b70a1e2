"""Content blocks of an answer: as they grow, with their events, and as they are at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.message_events import Content, Reasoning
from gateway.message_parser import MessageEvent

Event = dict[str, Any]

INVALID_JSON = "INVALID_JSON"
"""Key of what a model wrote in place of a JSON object, or did not finish."""

# By the type of block: the type of its deltas, and the field that they and the block grow by.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(slots=True)
class _Block:
    """One block; its text is the arguments where it is a call."""

    opening: dict[str, Any]
    text: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.opening["type"])

    def whole(self) -> dict[str, Any]:
        text = "".join(self.text)
        if self.kind == "tool_use":
            return self.opening | {"input": _input(text)}
        return self.opening | {_DELTAS[self.kind][1]: text}


class ContentBlocks:
    """The blocks of one output, in order; only the last one grows."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._is_open = False

    def objects(self) -> list[dict[str, Any]]:
        """Return the blocks as they are now."""
        return [block.whole() for block in self._blocks]

    def add(self, events: Iterable[MessageEvent]) -> Iterator[Event]:
        """Let the blocks grow; give what is new as events."""
        for event in events:
            if isinstance(event, Content):
                yield from self._grow({"type": "text", "text": ""}, event.text)
            elif isinstance(event, Reasoning):
                opening = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._grow(opening, event.text)
            else:
                if event.name:
                    call = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                    yield from self._begin(call)
                if event.arguments:
                    yield self._delta(event.arguments)

    def finish(self) -> Iterator[Event]:
        """End the last block."""
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _grow(self, opening: dict[str, Any], text: str) -> Iterator[Event]:
        if not self._is_open or self._blocks[-1].kind != opening["type"]:
            yield from self._begin(opening)
        yield self._delta(text)

    def _begin(self, opening: dict[str, Any]) -> Iterator[Event]:
        yield from self.finish()
        self._blocks.append(_Block(opening))
        self._is_open = True
        index = len(self._blocks) - 1
        yield {"type": "content_block_start", "index": index, "content_block": opening}

    def _delta(self, text: str) -> Event:
        block = self._blocks[-1]
        block.text.append(text)
        kind, name = _DELTAS[block.kind]
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}


def _input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: text}
