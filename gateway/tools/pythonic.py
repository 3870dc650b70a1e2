"""Calls as a Python list, as Llama 3.2 and 4 and other models write them.

    [f(a=1, b="x"), g()]

The whole output is the list, with or without `<|python_start|>` and `<|python_end|>` around it, and
the names have to be those of tools. A call goes out once it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gateway.tools.call_reader import MAX_HELD_CHARS
from gateway.tools.incremental import IncrementalParser, names
from gateway.tools.python_literals import parse_call

START = "<|python_start|>"
END = "<|python_end|>"


class PythonicParser(IncrementalParser):
    """One output."""

    def __init__(self, tools: Sequence[str]) -> None:
        super().__init__(self._begin, names(tools))
        self._call = _CallText()

    def finish(self) -> list[Any]:
        self._candidate += self._call.text
        self._call = _CallText()
        return super().finish()

    def leftover(self, text: str) -> str:
        return "" if self._step == self._end and END.startswith(text) else text

    def _begin(self) -> bool:
        return self.take_space() and self.enter(self._open)

    def _open(self) -> bool:
        tag = self.take(START)
        if tag:
            return self.enter(self._begin)
        if tag is None:
            return False
        return self.enter(self._begin_call) if self.take("[") else self.abandon()

    def _begin_call(self) -> bool:
        return self.take_space() and self.enter(self._read)

    def _read(self) -> bool:
        call = self._call
        self._pos = call.feed(self._text, self._pos)
        if not call.is_over:
            return False
        self._call = _CallText()
        found = None
        with suppress(ValueError):
            found = parse_call(call.text) if call.is_complete else None
        if found is None or not self._accepts(found[0]):
            self._candidate += call.text
            return self.abandon()
        self._candidate = ""
        self.writer.start(found[0])
        self.writer.arguments(json.dumps(found[1], ensure_ascii=False))
        return self.enter(self._skip_space)

    def _skip_space(self) -> bool:
        return self.take_space() and self.enter(self._separate)

    def _separate(self) -> bool:
        if self.take(","):
            return self.enter(self._begin_call)
        if not self.take("]"):
            return self.abandon()
        self._candidate = ""
        return self.enter(self._end_space)

    def _end_space(self) -> bool:
        return self.take_space() and self.enter(self._end)

    def _end(self) -> bool:
        tag = self.take(END)
        if tag:
            self._candidate = ""
        return tag is not None and self.abandon()


class _CallText:
    """Finds the parenthesis that closes a call, behind strings and brackets."""

    def __init__(self) -> None:
        self.text = ""
        self.is_over = False
        self.is_complete = False
        self._quote = ""
        self._is_escaped = False
        self._depth = 0

    def feed(self, text: str, pos: int) -> int:
        """Read on from `text[pos]`; return the place behind what was read."""
        begin = pos
        while pos < len(text) and not self.is_over:
            width = self._width(text, pos)
            if width == 0:
                break
            self._take(text[pos : pos + width])
            pos += width
            self.is_over |= len(self.text) + pos - begin >= MAX_HELD_CHARS
        self.text += text[begin:pos]
        return pos

    def _width(self, text: str, pos: int) -> int:
        """Characters that belong together: 3 of a triple quote. 0: more text must tell."""
        char = text[pos]
        if self._is_escaped or char not in "'\"" or self._quote not in ("", char * 3):
            return 1
        part = text[pos : pos + 3]
        if part == char * 3:
            return 3
        return 0 if (char * 3).startswith(part) else 1

    def _take(self, part: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._quote:
            self._is_escaped = part == "\\"
            if part == self._quote:
                self._quote = ""
        elif part[0] in "'\"":
            self._quote = part
        elif part in "([{":
            self._depth += 1
        elif part in ")]}":
            self._depth -= 1
            self.is_complete = self._depth == 0 and part == ")"
            self.is_over = self._depth <= 0
        elif self._depth == 0 and not (part.isalnum() or part in "_.-" or part.isspace()):
            self.is_over = True  # no name of a function
