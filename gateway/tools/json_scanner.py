"""Finds the end of one JSON value in text that comes in pieces, and whether it is one at all.

Strict (RFC 8259), linear in the text, with a bounded depth. It builds nothing: what the value is
to whoever feeds it, and where its text goes, is not known here.
"""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 64
MAX_SCALAR_CHARS = 1024
"""Of a number; longer ones are no JSON that anybody reads."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR_CHARS = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]"}


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """One value. `feed` until `is_done` or `is_broken`."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._is_in_string = False
        self._num_hex_digits = 0
        """Of an escape; how many are still to come."""
        self._is_escaped = False
        self._scalar = ""

    def feed(self, text: str, pos: int) -> int:
        """Read on from `text[pos]`.

        Returns:
            The place behind what was read: the end of the text, of the value, or the place of what
            breaks it. A number, true, false or null on its own ends before what follows it.
        """
        while pos < len(text) and not (self.is_done or self.is_broken):
            if self._is_in_string:
                pos = self._feed_string(text, pos)
            elif self._scalar:
                pos = self._feed_scalar(text, pos)
            else:
                pos = self._feed_structure(text, pos)
        return pos

    def _feed_string(self, text: str, pos: int) -> int:
        char = text[pos]
        if self._num_hex_digits:
            self.is_broken = char not in "0123456789abcdefABCDEF"
            self._num_hex_digits -= 1
        elif self._is_escaped:
            self._is_escaped = False
            self.is_broken = char not in '"\\/bfnrtu'
            self._num_hex_digits = 4 if char == "u" else 0
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_in_string = False
            self._end_string()
        elif char < " ":
            self.is_broken = True
        else:
            return _end(_PLAIN, text, pos)
        return pos if self.is_broken else pos + 1

    def _feed_scalar(self, text: str, pos: int) -> int:
        room = MAX_SCALAR_CHARS + 1 - len(self._scalar)
        end = min(_end(_SCALAR_CHARS, text, pos), pos + room)
        self._scalar += text[pos:end]
        if len(self._scalar) > MAX_SCALAR_CHARS:
            self.is_broken = True
        elif end < len(text):
            self.is_broken = _SCALAR.fullmatch(self._scalar) is None
            self._scalar = ""
            self._end_value()
        return end

    def _feed_structure(self, text: str, pos: int) -> int:
        pos = _end(_SPACE, text, pos)
        if pos == len(text):
            return pos
        char = text[pos]
        if self._expect in (_Expect.VALUE, _Expect.VALUE_OR_END):
            return self._begin_value(char, pos)
        if self._expect is _Expect.COLON:
            self.is_broken = char != ":"
            self._expect = _Expect.VALUE
        elif self._expect is _Expect.COMMA_OR_END:
            self._end_member(char)
        elif char == '"':
            self._is_in_string = True
        elif char == "}" and self._expect is _Expect.KEY_OR_END:
            self._close(char)
        else:
            self.is_broken = True
        return pos if self.is_broken else pos + 1

    def _begin_value(self, char: str, pos: int) -> int:
        if char in _CLOSERS and len(self._open) < MAX_DEPTH:
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
        elif char == '"':
            self._is_in_string = True
        elif char == "]" and self._expect is _Expect.VALUE_OR_END:
            self._close(char)
        elif char in "-0123456789tfn":
            self._scalar = char
        else:
            self.is_broken = True
            return pos
        return pos + 1

    def _end_member(self, char: str) -> None:
        if char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
        else:
            self._close(char)

    def _end_string(self) -> None:
        if self._expect in (_Expect.KEY, _Expect.KEY_OR_END):
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _close(self, char: str) -> None:
        if char == _CLOSERS[self._open[-1]]:
            self._open.pop()
            self._end_value()
        else:
            self.is_broken = True

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END
        self.is_done = not self._open and not self.is_broken


def _end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    """Where a pattern that matches the empty text stops."""
    match = pattern.match(text, pos)
    return match.end() if match is not None else pos
