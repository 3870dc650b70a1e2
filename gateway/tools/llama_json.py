"""Calls as bare JSON objects, as Llama 3 and 4 models write them.

    {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}

They stand at the beginning of the output, or behind `<|python_tag|>`. Nothing but the name tells
such an object from an answer in JSON, so it has to be that of a tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.tools.incremental import IncrementalParser, names
from gateway.tools.strict_forms import LeadingCalls

TAG = "<|python_tag|>"
LLAMA_JSON_CALLS = LeadingCalls("parameters", False, r"[^\s{<]|<[^|]", TAG)


class LlamaJsonParser(IncrementalParser):
    """One output."""

    def __init__(self, tools: Sequence[str]) -> None:
        super().__init__(self._begin, names(tools))

    def _begin(self) -> bool:
        return self.take_space() and self.enter(self._open_call)

    def _open_call(self) -> bool:
        """An object, with or without the tag before it."""
        if self.peek() == "{":
            return self.enter(self._read)
        tag = self.take(TAG)
        if tag is None:
            return False
        return self.enter(self._begin) if tag else self.abandon()

    def plain(self) -> bool:
        return self.pass_content(TAG) and self.enter(self._begin)

    def _read(self) -> bool:
        return self.read_call(self._skip_space)

    def _skip_space(self) -> bool:
        return self.take_space() and self.enter(self._separate)

    def _separate(self) -> bool:
        return self.enter(self._begin if self.take(";", ",") else self._open_call)
