"""Calls behind `[TOOL_CALLS]`, in the forms that Mistral's tokenizers have had.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]                     up to version 7
[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}                                   from version 11
[TOOL_CALLS]f[ARGS]{"a": 1}    [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}
"""

from __future__ import annotations

import secrets

from gateway.tools.call_reader import MAX_NAME_CHARS
from gateway.tools.incremental import IncrementalParser, any_name
from gateway.tools.json_scanner import JsonScanner

TAG = "[TOOL_CALLS]"
_ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_MAX_ID_CHARS = 64
_ID_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_NUM_ID_CHARS = 9


class MistralParser(IncrementalParser):
    """One output."""

    def __init__(self) -> None:
        super().__init__(self.plain, any_name)
        self._name = ""
        self._num_id_chars = 0
        self._scanner = JsonScanner()

    def plain(self) -> bool:
        return self.pass_content(TAG) and self.enter(self._begin)

    def _begin(self) -> bool:
        return self.take_space() and self.enter(self._open)

    def _open(self) -> bool:
        if self.take("["):
            return self.enter(self._begin_item)
        self._name = ""
        return self.enter(self._read_one if self.peek() == "{" else self._read_name)

    def _read_one(self) -> bool:
        return self.read_call(self.plain)

    # The array of objects.

    def _begin_item(self) -> bool:
        return self.take_space() and self.enter(self._read_item)

    def _read_item(self) -> bool:
        return self.read_call(self._skip_space)

    def _skip_space(self) -> bool:
        return self.take_space() and self.enter(self._separate)

    def _separate(self) -> bool:
        if self.take(","):
            return self.enter(self._begin_item)
        if self.take("]"):
            self._candidate = ""
        return self.abandon()

    # Name and arguments.

    def _read_name(self) -> bool:
        self._name += self.take_chars(_is_of_name, MAX_NAME_CHARS + 1 - len(self._name))
        if not self._name or len(self._name) > MAX_NAME_CHARS:
            return self.abandon()
        return bool(self.peek()) and self.enter(self._skip_name_space)

    def _skip_name_space(self) -> bool:
        return self.take_space() and self.enter(self._end_name)

    def _end_name(self) -> bool:
        if self.peek() == "{":
            return self._begin_arguments()
        tag = self.take(_ARGUMENTS, _CALL_ID)
        if tag is None:
            return False
        self._num_id_chars = 0
        following = {_ARGUMENTS: self._skip_name_space, _CALL_ID: self._skip_id}.get(tag)
        return self.enter(following) if following else self.abandon()

    def _skip_id(self) -> bool:
        self._num_id_chars += len(
            self.take_chars(str.isalnum, _MAX_ID_CHARS + 1 - self._num_id_chars)
        )
        if self._num_id_chars > _MAX_ID_CHARS:
            return self.abandon()
        return bool(self.peek()) and self.enter(self._skip_name_space)

    def _begin_arguments(self) -> bool:
        self._candidate = ""
        self._scanner = JsonScanner()
        self.writer.start(self._name)
        return self.enter(self._read_arguments)

    def _read_arguments(self) -> bool:
        end = self._scanner.feed(self._text, self._pos)
        self.writer.arguments(self._text[self._pos : end])
        self._pos = end
        is_over = self._scanner.is_done or self._scanner.is_broken
        return is_over and self.enter(self.plain)


def new_call_id() -> str:
    """Return an id as Mistral's templates demand it."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(_NUM_ID_CHARS))


def _is_of_name(char: str) -> bool:
    return char.isalnum() or char in "_-.:/"
