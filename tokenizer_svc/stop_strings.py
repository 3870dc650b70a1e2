"""Stop strings in text that arrives in pieces.

Holds back exactly the end of the text that may become a stop string (always shorter than the
longest of them), and looks only at that end and the new text, so the cost does not grow with the
output. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MatchedText(NamedTuple):
    """Text that is safe to show, and which stop string (by its index) ended it, if any."""

    text: str
    stop_index: int | None = None


class StopStringMatcher:
    """One output's stop strings.

    `_tail` is the longest end of the text so far that some stop string starts with: every stop
    string that completes later begins within it.
    """

    __slots__ = ("_first_characters", "_include", "_stop", "_tail")

    def __init__(self, stop: Sequence[str], include_in_output: bool) -> None:
        self._stop = tuple(stop)
        self._first_characters = frozenset(text[0] for text in stop)
        self._include = include_in_output
        self._tail = ""

    def push(self, text: str, counts: bool = True) -> MatchedText:
        """Take in text.

        Args:
            text: The next text.
            counts: Whether a stop string that this text completes ends the output.
        """
        if not self._tail and self._first_characters.isdisjoint(text):
            return MatchedText(text)
        known = len(self._tail)
        window = self._tail + text
        found = self._earliest(window, known) if counts else None
        if found is not None:
            end, index = found
            start = end - len(self._stop[index])
            self._tail = ""
            return MatchedText(window[known:end] if self._include else window[:start], index)
        self._tail = window[self._possible_start(window) :]
        if self._include:
            return MatchedText(text)
        return MatchedText(window[: len(window) - len(self._tail)])

    def flush(self) -> str:
        """The text that was held back: nothing more will come."""
        held, self._tail = self._tail, ""
        return "" if self._include else held

    def _earliest(self, window: str, known: int) -> tuple[int, int] | None:
        """(end, index) of the stop string that ends first behind `known`; a tie: list order."""
        best: tuple[int, int] | None = None
        for index, stop in enumerate(self._stop):
            start = window.find(stop, max(0, known - len(stop) + 1))
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), index)
        return best

    def _possible_start(self, window: str) -> int:
        """Where the longest end of `window` begins that a stop string starts with."""
        best = len(window)
        for stop in self._stop:
            start = window.find(stop[0], max(0, len(window) - len(stop) + 1))
            while 0 <= start < best:
                if stop.startswith(window[start:]):
                    best = start
                    break
                start = window.find(stop[0], start + 1)
        return best
