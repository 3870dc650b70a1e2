"""What parsers of tool calls share: text that waits, and steps that take it in order.

A parser is a set of steps, of which one is current. A step takes what it can from the waiting text
and says whether the next one has something to do; a step that needs more text leaves it waiting.
What waits is bounded: a partial tag, or a call that is not certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.message_events import ToolEvent
from gateway.text_tags import num_partial
from gateway.tools.call_reader import MAX_HELD_CHARS, CallReader, Status
from gateway.tools.event_writer import EventWriter


class ToolParser(Protocol):
    """Takes one output's text in pieces. How it is cut changes nothing but the cuts of events."""

    def push(self, text: str) -> list[ToolEvent]:
        """Read the next piece; return what is known by it."""
        ...

    def finish(self) -> list[ToolEvent]:
        """Return what was held back; the output is over."""
        ...


Step = Callable[[], bool]


class IncrementalParser:
    """Implements `ToolParser` for formats that are a sequence of steps."""

    def __init__(self, first: Step, accepts: Callable[[str], bool]) -> None:
        """Prepare for an output.

        Args:
            first: The first step, a method of the subclass.
            accepts: Whether a name is that of a tool; a call of another one is plain text.
        """
        self.writer = EventWriter()
        self._step = first
        self._accepts = accepts
        self._text = ""
        self._pos = 0
        self._candidate = ""
        """What was taken for the beginning of a call, in case that none comes."""
        self._reader: CallReader | None = None

    def push(self, text: str) -> list[ToolEvent]:
        self._text = self._text[self._pos :] + text
        self._pos = 0
        step = None
        while step != self._step:
            step = self._step
            while step == self._step and step():
                pass
        return self.writer.take()

    def finish(self) -> list[ToolEvent]:
        if self._reader is not None:
            self._candidate += self._reader.held
        self.writer.content(self._candidate + self.leftover(self._text[self._pos :]))
        self._text, self._pos, self._candidate, self._reader = "", 0, "", None
        self.writer.flush()
        return self.writer.take()

    def leftover(self, text: str) -> str:
        """Return what of the text that waits at the end is content."""
        return text

    def plain(self) -> bool:
        """The step of text outside calls; here no call can follow it."""
        return self.pass_content(None)

    # What steps are made of.

    def enter(self, step: Step) -> bool:
        self._step = step
        return True

    def pass_content(self, tag: str | None) -> bool:
        """Pass on content up to a tag, and take the tag as a candidate; whether it was found."""
        place = self._text.find(tag, self._pos) if tag is not None else -1
        end = place
        if place < 0:
            end = len(self._text) - num_partial(self._text, tag or "", self._pos)
        self.writer.content(self._text[self._pos : end])
        self._pos = end
        if place >= 0 and tag is not None:
            self._pos += len(tag)
            self._candidate = tag
        return place >= 0

    def take_space(self) -> bool:
        """Take space as part of the candidate; whether something follows it.

        A candidate that has become too long is given up here: every loop of steps takes space.
        """
        self.take_chars(str.isspace, MAX_HELD_CHARS - len(self._candidate))
        if len(self._candidate) >= MAX_HELD_CHARS:
            self.abandon()
            return False
        return bool(self.peek())

    def take(self, *tags: str) -> str | None:
        """Take one of the tags as part of the candidate, the first that fits.

        Returns:
            The tag; "" if none is there; None if that needs more text.
        """
        for tag in tags:
            part = self._text[self._pos : self._pos + len(tag)]
            if part == tag:
                self._candidate += tag
                self._pos += len(tag)
                return tag
            if tag.startswith(part):
                return None
        return ""

    def take_chars(self, chars: Callable[[str], bool], most: int) -> str:
        """Take characters of a kind, at most so many, as part of the candidate."""
        end = self._pos
        while end < min(len(self._text), self._pos + most) and chars(self._text[end]):
            end += 1
        taken = self._text[self._pos : end]
        self._candidate += taken
        self._pos = end
        return taken

    def peek(self) -> str:
        """Return the next character; "" if there is none yet."""
        return self._text[self._pos : self._pos + 1]

    def abandon(self) -> bool:
        """No call: the candidate is content, and `plain` follows."""
        self.writer.content(self._candidate)
        self._candidate = ""
        return self.enter(self.plain)

    def read_call(self, after: Step) -> bool:
        """Read an object; go on with `after` behind it."""
        if self._reader is None:
            self._reader = CallReader(self.writer, self._accepts)
        reader = self._reader
        self._pos = reader.feed(self._text, self._pos)
        if reader.has_started:
            self._candidate = ""
        if reader.status is Status.READING:
            return False
        self._reader = None
        if reader.status is Status.DONE:
            return self.enter(after)
        self._candidate += reader.held
        return self.abandon()


def names(tools: Sequence[str]) -> Callable[[str], bool]:
    """Return the test for names of these tools."""
    return frozenset(tools).__contains__


def any_name(name: str) -> bool:
    """Accept every name: the model said clearly that it calls, and its client sees what."""
    return True
