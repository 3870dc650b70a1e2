"""Tags in text that comes in pieces."""

from __future__ import annotations


def num_partial(text: str, tag: str, pos: int = 0) -> int:
    """Return how many characters at the end of `text[pos:]` may be the beginning of a tag."""
    longest = min(len(tag) - 1, len(text) - pos)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
