"""Splits `<think>reasoning</think>answer`, with or without the tags that the prompt may hold.

Line breaks around the tags belong to the format and are left out.
"""

from __future__ import annotations

from enum import Enum, auto

from gateway.message_events import Content, Reasoning, ReasoningEvent
from gateway.text_tags import num_partial

OPEN = "<think>"
CLOSE = "</think>"
MAX_HELD_CHARS = 256
"""Of space that may belong to a tag; a longer run is text in its own right."""


class Begin(Enum):
    """Where an output begins, as far as the prompt tells."""

    REASONING = auto()
    """Within the reasoning; the output may open it once more."""
    ANSWER = auto()
    """Behind it."""
    EITHER = auto()
    """The output tells: with a tag it reasons, without one it answers."""


def begin_of(prompt: str, otherwise: Begin) -> Begin:
    """Return where the output behind a prompt begins.

    Args:
        prompt: The prompt's text, or its end.
        otherwise: For a prompt that ends without a tag.
    """
    tail = prompt.rstrip()
    if tail.endswith(OPEN):
        return Begin.REASONING
    return Begin.ANSWER if tail.endswith(CLOSE) else otherwise


def begin_of_continued(message: str) -> Begin:
    """Return where an output begins that continues a message which the client has begun."""
    return Begin.REASONING if message.rfind(OPEN) > message.rfind(CLOSE) else Begin.ANSWER


class _State(Enum):
    OPENING = auto()
    BREAKS = auto()
    """Before the first word of the reasoning."""
    REASONING = auto()
    CLOSING = auto()
    ANSWER = auto()


class ThinkTagSplitter:
    """One output's text. How it is cut into pieces changes no event but its cuts."""

    def __init__(self, begin: Begin) -> None:
        self._state = _State.ANSWER if begin is Begin.ANSWER else _State.OPENING
        self._needs_tag = begin is Begin.EITHER
        self._text = ""
        """Waits: what may be a part of a tag, or space before one."""

    def push(self, text: str) -> list[ReasoningEvent]:
        """Read the next piece; return what is known by it."""
        self._text += text
        events: list[ReasoningEvent] = []
        while self._text and self._step(events):
            pass
        return events

    def finish(self) -> list[ReasoningEvent]:
        """Return what was held back; the output is over."""
        text, self._text = self._text, ""
        if self._state is _State.CLOSING:
            return []
        is_answer = self._state is _State.ANSWER or self._needs_tag
        return _content(text) if is_answer else _reasoning(text)

    def _step(self, events: list[ReasoningEvent]) -> bool:
        """Take what can be told from the waiting text; whether there may be more to tell."""
        if self._state is _State.OPENING:
            return self._open()
        if self._state is _State.BREAKS:
            return self._skip_breaks(_State.REASONING)
        if self._state is _State.REASONING:
            return self._reason(events)
        if self._state is _State.CLOSING:
            return self._skip_breaks(_State.ANSWER)
        events += _content(self._text)
        self._text = ""
        return False

    def _open(self) -> bool:
        bare = self._text.lstrip()
        if len(self._text) - len(bare) <= MAX_HELD_CHARS:
            if bare.startswith(OPEN):
                self._text = bare[len(OPEN) :]
                self._needs_tag = False
                self._state = _State.BREAKS
                return True
            if OPEN.startswith(bare):
                return False
        self._state = _State.ANSWER if self._needs_tag else _State.BREAKS
        return True

    def _skip_breaks(self, following: _State) -> bool:
        self._text = self._text.lstrip("\n")
        if self._text:
            self._state = following
        return bool(self._text)

    def _reason(self, events: list[ReasoningEvent]) -> bool:
        place = self._text.find(CLOSE)
        is_over = place >= 0
        end = place if is_over else len(self._text) - num_partial(self._text, CLOSE)
        # Line breaks before the tag are not part of the text.
        shown = max(len(self._text[:end].rstrip("\n")), end - MAX_HELD_CHARS)
        events += _reasoning(self._text[:shown])
        self._text = self._text[end + len(CLOSE) if is_over else shown :]
        if is_over:
            self._state = _State.CLOSING
        return is_over


def _reasoning(text: str) -> list[ReasoningEvent]:
    return [Reasoning(text)] if text else []


def _content(text: str) -> list[ReasoningEvent]:
    return [Content(text)] if text else []
