"""Calls as JSON, an object or an array of them, with or without a Markdown fence around.

    [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]

The whole output is calls, or it is none: they begin with its first character, and the first one's
name has to be that of a tool. This is also the form that `tool_choice` required forces.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.message_events import CallArguments, CallStart, ToolEvent
from gateway.tools.incremental import IncrementalParser, names
from gateway.tools.strict_forms import LeadingCalls

_FENCES = ("```json", "```")
# A fence may begin a text, but not one that holds JSON.
JSON_CALLS = LeadingCalls(
    "arguments", True, r"[^\s\[{`]|\[[^\s{`]|`[^`]|``[^`]|```[^\s\[{j]|```\n[^\s\[{]"
)


class JsonCallsParser(IncrementalParser):
    """One output."""

    def __init__(self, tools: Sequence[str]) -> None:
        super().__init__(self._begin, names(tools))
        self._is_in_array = False
        self._is_in_fence = False

    def leftover(self, text: str) -> str:
        closes = self._step == self._end_fence and "```".startswith(text)
        return "" if closes else text

    def _begin(self) -> bool:
        return self.take_space() and self.enter(self._open)

    def _open(self) -> bool:
        fence = "" if self._is_in_fence else self.take(*_FENCES)
        if fence is None:
            return False
        if fence:
            self._is_in_fence = True
            return self.enter(self._begin)
        if not self._is_in_array and self.take("["):
            self._is_in_array = True
            return self.enter(self._begin)
        return self.enter(self._read) if self.peek() == "{" else self.abandon()

    def _read(self) -> bool:
        return self.read_call(self._skip_space)

    def _skip_space(self) -> bool:
        return self.take_space() and self.enter(self._separate)

    def _separate(self) -> bool:
        if self.take(",", ";"):
            return self.enter(self._begin)
        if self._is_in_array:
            self._is_in_array = False
            if not self.take("]"):
                return self.abandon()
            self._candidate = ""
            return self.enter(self._end_array)
        return self.enter(self._read if self.peek() == "{" else self._end_fence)

    def _end_array(self) -> bool:
        return self.take_space() and self.enter(self._end_fence)

    def _end_fence(self) -> bool:
        tag = self.take("```") if self._is_in_fence else ""
        if tag:
            self._candidate = ""
        return tag is not None and self.abandon()


class NamedCallParser:
    """Implements `ToolParser` where the whole output is the arguments of one tool."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_started = False

    def push(self, text: str) -> list[ToolEvent]:
        if not text:
            return []
        start = [] if self._has_started else [CallStart(self._name)]
        self._has_started = True
        return [*start, CallArguments(text)]

    def finish(self) -> list[ToolEvent]:
        return []
