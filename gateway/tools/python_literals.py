"""Reads one call written in Python, `f(a=1, b=["x"])`: a name, and literals for keywords.

A parser of its own, bounded in depth, that runs nothing and knows no names but True, False and
None (and JSON's spelling of them).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from gateway.tools.json_scanner import MAX_SCALAR_CHARS

MAX_DEPTH = 64

_SPACE = re.compile(r"\s*")
NAME = re.compile(r"[^\W\d][\w.\-]*")
_NUMBER = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?)(?![\w.])"
)
_STRING = re.compile(
    r'"""(?P<a>(?:[^\\]|\\.)*?)"""|'
    r"'''(?P<b>(?:[^\\]|\\.)*?)'''|"
    r'"(?P<c>(?:[^"\\]|\\.)*+)"|'
    r"'(?P<d>(?:[^'\\]|\\.)*+)'",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_QUOTES = ("'", '"')
_PLAIN_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\n": "",
}
_CONSTANTS = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments.

    Raises:
        ValueError: The text is not such a call.
    """
    reader = _Reader(text)
    name = reader.name()
    reader.expect("(")
    arguments: dict[str, Any] = {}
    while not reader.take(")"):
        key = reader.name()
        reader.expect("=")
        if key in arguments:
            raise ValueError("an argument twice")
        arguments[key] = reader.value(1)
        if not reader.take(","):
            reader.expect(")")
            break
    reader.expect_end()
    return name, arguments


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0

    def name(self) -> str:
        return self._match(NAME)[0]

    def take(self, char: str) -> bool:
        self._skip_space()
        if not self._text.startswith(char, self._pos):
            return False
        self._pos += len(char)
        return True

    def expect(self, char: str) -> None:
        if not self.take(char):
            raise ValueError(f"no {char}")

    def expect_end(self) -> None:
        self._skip_space()
        if self._pos != len(self._text):
            raise ValueError("more text")

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        if self.take("["):
            return self._items("]", lambda: self.value(depth + 1))
        if self.take("("):
            return self._items(")", lambda: self.value(depth + 1))
        if self.take("{"):
            return dict(self._items("}", lambda: self._pair(depth + 1)))
        if self._peek() in _QUOTES:
            return self._string()
        if match := _NUMBER.match(self._text, self._pos):
            self._pos = match.end()
            return _number(match[0])
        name = self.name()
        if name not in _CONSTANTS:
            raise ValueError("a name that is no literal")
        return _CONSTANTS[name]

    def _items(self, closer: str, item: Callable[[], Any]) -> list[Any]:
        items = []
        while not self.take(closer):
            items.append(item())
            if not self.take(","):
                self.expect(closer)
                break
        return items

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self.value(depth)
        if not isinstance(key, str):
            raise ValueError("a key that is no string")
        self.expect(":")
        return key, self.value(depth)

    def _string(self) -> str:
        """Adjacent strings are one, as in Python."""
        text = ""
        while self._peek() in _QUOTES:
            match = self._match(_STRING)
            body = next(group for group in match.groups() if group is not None)
            text += _ESCAPE.sub(_unescape, body)
            self._skip_space()
        if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
            raise ValueError("half a character")
        return text

    def _peek(self) -> str:
        """The next character; a space at the end, which begins nothing."""
        return self._text[self._pos : self._pos + 1] or " "

    def _skip_space(self) -> None:
        self._pos = self._match(_SPACE).end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        if pattern is not _SPACE:
            self._skip_space()
        match = pattern.match(self._text, self._pos)
        if match is None:
            raise ValueError("something else")
        self._pos = match.end()
        return match


def _number(text: str) -> int | float:
    if len(text) > MAX_SCALAR_CHARS:
        raise ValueError("too long")  # an integer that Python reads and refuses to write
    if text.lstrip("+-").isdecimal() or text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b"):
        return int(text, 0)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("too large")
    return value


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return _character(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    # Python keeps the backslash before what it does not know.
    known = code in "\\'\""
    return _PLAIN_ESCAPES.get(code, code if known else f"\\{code}")


def _character(code: int) -> str:
    if code > 0x10FFFF:
        raise ValueError("no character")
    return chr(code)
