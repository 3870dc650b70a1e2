"""Where a parser of tool calls writes its events; trims the space between text and calls.

Space between text and a call belongs to the format, not to the message: it is left out on both
sides of a call, and kept where no call follows. Texts before and behind calls stand on lines of
their own.
"""

from __future__ import annotations

from gateway.message_events import CallArguments, CallStart, Content, ToolEvent

MAX_HELD_SPACE_CHARS = 256


class EventWriter:
    """Collects events until they are taken; holds back the space at the end of content."""

    def __init__(self) -> None:
        self._events: list[ToolEvent] = []
        self._space = ""
        self._is_behind_call = False
        self._has_content = False

    def content(self, text: str) -> None:
        if self._is_behind_call:
            text = text.lstrip()
        if not text:
            return
        if self._is_behind_call and self._has_content:
            text = f"\n{text}"
        self._is_behind_call = False
        text = self._space + text
        shown = text.rstrip()
        # A longer run of space is text in its own right.
        shown = text[: max(len(shown), len(text) - MAX_HELD_SPACE_CHARS)]
        self._space = text[len(shown) :]
        if shown:
            self._has_content = True
            self._events.append(Content(shown))

    def start(self, name: str) -> None:
        self._space = ""
        self._is_behind_call = True
        self._events.append(CallStart(name))

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(text))

    def flush(self) -> None:
        """Show the space that no call follows."""
        if self._space:
            self._events.append(Content(self._space))
            self._space = ""

    def take(self) -> list[ToolEvent]:
        """Return what was written since, and forget it."""
        events, self._events = self._events, []
        return events
