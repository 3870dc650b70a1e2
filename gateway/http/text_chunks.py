"""Chunks of a stream in which only the text changes: their JSON is made once, then cut in two."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from gateway.http.json_response import text_to_json, to_json


class TextChunks:
    """The events of one stream's text, by index of the output. What they say equals `to_json`'s."""

    def __init__(self, chunk: Callable[[int, str], dict[str, Any]]) -> None:
        """Prepare.

        Args:
            chunk: Makes the whole chunk for an index and a text.
        """
        self._chunk = chunk
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def event(self, index: int, text: str) -> bytes:
        """Return the event for a piece of the output's text."""
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = self._cut(index)
        return around[0] + text_to_json(text) + around[1]

    def _cut(self, index: int) -> tuple[bytes, bytes]:
        """Return the event's bytes before and behind the text."""
        mark = secrets.token_hex(16)  # nobody can have put it into a field
        event = b"data: " + to_json(self._chunk(index, mark)) + b"\n\n"
        before, behind = event.split(text_to_json(mark))
        return before, behind
