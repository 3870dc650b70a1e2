"""Calls in tags, as Hermes and Qwen models write them.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Text may stand before, between and behind calls. The closing tag may be missing.
"""

from __future__ import annotations

from gateway.tools.incremental import IncrementalParser, any_name
from gateway.tools.strict_forms import CallTags

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
HERMES_TAGS = CallTags(OPEN, '\n{"name": ', ', "arguments": ', f"}}\n{CLOSE}")


class HermesParser(IncrementalParser):
    """One output."""

    def __init__(self) -> None:
        super().__init__(self.plain, any_name)

    def leftover(self, text: str) -> str:
        # Cut off within the tag behind a call.
        return "" if self._step == self._close_call and CLOSE.startswith(text) else text

    def plain(self) -> bool:
        return self.pass_content(OPEN) and self.enter(self._open_call)

    def _open_call(self) -> bool:
        return self.take_space() and self.enter(self._read)

    def _read(self) -> bool:
        return self.read_call(self._skip_space)

    def _skip_space(self) -> bool:
        return self.take_space() and self.enter(self._close_call)

    def _close_call(self) -> bool:
        tag = self.take(CLOSE)
        if tag:
            self._candidate = ""
        return tag is not None and self.abandon()
