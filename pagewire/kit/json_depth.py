"""A bound of how deep JSON from outside may nest.

Python's reader stops near the interpreter's limit of recursion; whatever walks or writes the value
afterwards, a few frames further down, would then fail. It reads no JSON itself.
"""

from __future__ import annotations

from typing import Any

MAX_JSON_DEPTH = 256
"""Objects and arrays within each other; what people write has a few dozen."""


def is_too_deep(text: str, value: Any) -> bool:
    """Whether a value nests deeper than `MAX_JSON_DEPTH`; walks it without recursion.

    Args:
        text: The JSON text; with few brackets it answers by itself.
        value: What was read from it.
    """
    if text.count("{") + text.count("[") <= MAX_JSON_DEPTH:
        return False
    level = _containers([value])
    for _ in range(MAX_JSON_DEPTH):
        level = [inner for each in level for inner in _containers(_members(each))]
        if not level:
            return False
    return True


def _members(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _containers(values: Any) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]
