"""Text of others, made fit for a terminal: names, ids, errors and answers must not drive it.

A control character in a model's name, a request's id or an answer could move the cursor, change the
title, or send what looks like input. It knows nothing of what the texts mean.
"""

from __future__ import annotations

from typing import Any

_KEPT = "\n\t"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = {
    code: _REPLACEMENT for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in _KEPT
}


def one_line(text: str) -> str:
    """Return a label or a message with a space for all that shows nothing, as long as it was."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def without_controls(text: str) -> str:
    """Return text of several lines; all control characters but newline and tab are marked.

    What joins letters or turns their direction stays: languages need it. A piece of a text gives
    that piece of the result.
    """
    return text.translate(_CONTROLS)


def plain(value: Any) -> Any:
    """Return a JSON value whose texts, names of members included, are each of one line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(name): plain(member) for name, member in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value
