"""Reads one call written as a JSON object, `{"name": "f", "arguments": {...}}`, as it comes.

The arguments go out while they are written. Until the call is certain, that is the name is known
and the arguments begin, all that was read can still be taken back as plain text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, auto

from gateway.tools.event_writer import EventWriter
from gateway.tools.json_scanner import JsonScanner

MAX_NAME_CHARS = 256
MAX_HELD_CHARS = 65_536
"""What is kept of a call that is not certain; a longer one is plain text."""

_ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\n\r"


class Status(Enum):
    """Of one call."""

    READING = auto()
    DONE = auto()
    BROKEN = auto()
    """What follows cannot belong to it."""


class _Phase(Enum):
    OPEN = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()


class _Role(Enum):
    """What a JSON value within the object is."""

    KEY = auto()
    NAME = auto()
    ARGUMENTS = auto()
    ENCODED_ARGUMENTS = auto()
    """A string that holds the object as text."""
    OTHER = auto()


class CallReader:
    """One object. `feed` while `status` is READING.

    Where it is BROKEN: before `has_started`, `held` is all that was read and no event was written;
    after it, the call stands with the arguments that it has.
    """

    def __init__(self, writer: EventWriter, accepts: Callable[[str], bool]) -> None:
        """Prepare for an object.

        Args:
            writer: Takes the events.
            accepts: Whether a name is that of a tool; other names break the call.
        """
        self.status = Status.READING
        self.has_started = False
        self.held = ""
        self._writer = writer
        self._accepts = accepts
        self._phase = _Phase.OPEN
        self._scanner: JsonScanner | None = None
        self._role = _Role.OTHER
        self._captured = ""
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None
        """Read before the name was known."""
        self._has_arguments = False

    def feed(self, text: str, pos: int) -> int:
        """Read on from `text[pos]`; return the place behind what was read."""
        if not self.has_started:
            # In a window, so that a call becomes too long at the same place however it comes.
            window = text[pos : pos + MAX_HELD_CHARS - len(self.held)]
            num_read = self._feed(window, 0)
            pos += num_read
            self.held = "" if self.has_started else self.held + window[:num_read]
            if self.status is Status.READING and len(self.held) >= MAX_HELD_CHARS:
                self.status = Status.BROKEN
        return self._feed(text, pos) if self.has_started else pos

    def _feed(self, text: str, pos: int) -> int:
        while pos < len(text) and self.status is Status.READING:
            pos = (
                self._feed_structure(text, pos) if self._scanner is None else self._scan(text, pos)
            )
        return pos

    def _feed_structure(self, text: str, pos: int) -> int:
        char = text[pos]
        if char in _SPACE:
            return pos + 1
        if self._phase is _Phase.VALUE:
            self._begin_value(char)
            return pos
        if self._phase in (_Phase.KEY, _Phase.KEY_OR_END) and char == '"':
            self._scan_as(_Role.KEY)
            return pos
        if self._phase in (_Phase.NEXT, _Phase.KEY_OR_END) and char == "}":
            self._close()
            return pos + 1
        following = {
            (_Phase.OPEN, "{"): _Phase.KEY_OR_END,
            (_Phase.COLON, ":"): _Phase.VALUE,
            (_Phase.NEXT, ","): _Phase.KEY,
        }.get((self._phase, char))
        if following is None:
            self._break()
            return pos
        self._phase = following
        return pos + 1

    def _begin_value(self, char: str) -> None:
        if self._key == "name":
            self._scan_as(_Role.NAME, is_right=char == '"' and self._name is None)
        elif self._key in _ARGUMENT_KEYS:
            self._begin_arguments(char)
        else:
            self._scan_as(_Role.OTHER)

    def _begin_arguments(self, char: str) -> None:
        if char == "n":  # null: none
            self._scan_as(_Role.OTHER)
            return
        role = _Role.ENCODED_ARGUMENTS if char == '"' else _Role.ARGUMENTS
        self._scan_as(role, is_right=char in '{"' and not self._has_arguments)
        self._has_arguments = True
        is_object = role is _Role.ARGUMENTS and self.status is Status.READING
        if is_object and self._name is not None:
            self._start()

    def _scan_as(self, role: _Role, is_right: bool = True) -> None:
        self._role = role
        self._captured = ""
        self._scanner = JsonScanner()
        if not is_right:
            self.status = Status.BROKEN

    def _scan(self, text: str, pos: int) -> int:
        scanner = self._scanner
        if scanner is None:
            return pos
        if self._role is _Role.KEY:
            text = text[: pos + MAX_NAME_CHARS - len(self._captured)]
        end = scanner.feed(text, pos)
        if self._role is _Role.ARGUMENTS and self.has_started:
            self._writer.arguments(text[pos:end])
        elif self._role is not _Role.OTHER:
            self._captured += text[pos:end]
        is_too_long = self._role is _Role.KEY and len(self._captured) >= MAX_NAME_CHARS
        if scanner.is_broken or (is_too_long and not scanner.is_done):
            self.status = Status.BROKEN
        elif scanner.is_done:
            self._scanner = None
            self._end_value()
        return end

    def _end_value(self) -> None:
        self._phase = _Phase.COLON if self._role is _Role.KEY else _Phase.NEXT
        if self._role is _Role.KEY:
            self._key = str(json.loads(self._captured))
        elif self._role is _Role.NAME:
            self._end_name(str(json.loads(self._captured)))
        elif self._role is _Role.ARGUMENTS and not self.has_started:
            self._arguments = self._captured
        elif self._role is _Role.ENCODED_ARGUMENTS:
            self._end_encoded(str(json.loads(self._captured)))

    def _end_name(self, name: str) -> None:
        if not is_tool_name(name) or not self._accepts(name):
            self.status = Status.BROKEN
            return
        self._name = name
        if self._arguments is not None:
            self._start()
            self._writer.arguments(self._arguments)

    def _end_encoded(self, text: str) -> None:
        if not is_json_object(text):
            self.status = Status.BROKEN
            return
        self._arguments = text.strip()
        if self._name is not None:
            self._start()
            self._writer.arguments(self._arguments)

    def _close(self) -> None:
        if self._name is None:
            self.status = Status.BROKEN
            return
        if not self.has_started:
            self._start()
            self._writer.arguments("{}")
        self.status = Status.DONE

    def _break(self) -> None:
        """A forgotten brace at the end of a call whose arguments are whole does no harm."""
        is_whole = self.has_started and self._phase is _Phase.NEXT
        self.status = Status.DONE if is_whole else Status.BROKEN

    def _start(self) -> None:
        self.has_started = True
        self._writer.start(self._name or "")


def is_tool_name(name: str) -> bool:
    """Whether a text can be a tool's name in an answer."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def is_json_object(text: str) -> bool:
    """Whether a text is one JSON object, by the rules of `JsonScanner`."""
    scanner = JsonScanner()
    text = text.strip()
    is_object = text.startswith("{") and scanner.feed(text, 0) == len(text) and scanner.is_done
    return is_object and all(not 0xD800 <= ord(char) <= 0xDFFF for char in text)
