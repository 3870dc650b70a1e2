"""Prompt lookup: finds the last tokens of a sequence earlier in it, and what followed them there.

One index belongs to one growing sequence. It costs O(1) a token and a bounded number of comparisons
a lookup, however long the sequence is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MAX_CANDIDATES = 16
"""Earlier places that one lookup compares, latest first."""
MAX_INDEXED_TOKENS = 32_768
"""Tokens before the first lookup that are looked at: those further back are not found."""
MAX_INDEXED_AT_ONCE = 4096
"""Tokens that one lookup adds to the index, so that a long prompt costs no step its time."""
_NOWHERE = -1


class NgramIndex:
    """Where each run of `shortest` tokens ended in a sequence, latest first.

    Runs are kept by their hash alone: a lookup compares the tokens themselves anyway.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"runs of {shortest} to {longest} tokens: must be 1 <= min <= max")
        self._shortest = shortest
        self._longest = longest
        self._first = _NOWHERE
        """Where the index begins."""
        self._last_end: dict[int, int] = {}
        # By position: where the run that ends there ended before.
        self._end_before = array("q")

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return up to `max_tokens` tokens that followed the longest earlier run of last tokens.

        Of equally long runs the latest counts. Where what followed reaches into the run itself, as
        in a text that repeats, it goes on over its own guesses.

        Args:
            token_ids: The sequence; from call to call it only grows.
            max_tokens: At least 0.
        """
        if len(token_ids) < self._shortest or max_tokens < 1:
            return []
        self._extend(token_ids)
        end = self._find(token_ids)
        if end == _NOWHERE:
            return []
        period = len(token_ids) - 1 - end
        return [token_ids[end + 1 + index % period] for index in range(max_tokens)]

    def _extend(self, token_ids: Sequence[int]) -> None:
        """Index runs up to the last one, which is what is looked for."""
        last_end, end_before, shortest = self._last_end, self._end_before, self._shortest
        if self._first == _NOWHERE:
            self._first = max(0, len(token_ids) - MAX_INDEXED_TOKENS)
        start = self._first + len(end_before)
        for end in range(start, min(len(token_ids) - 1, start + MAX_INDEXED_AT_ONCE)):
            key = hash(tuple(token_ids[max(0, end + 1 - shortest) : end + 1]))
            end_before.append(last_end.get(key, _NOWHERE))
            last_end[key] = end

    def _find(self, token_ids: Sequence[int]) -> int:
        """The end of the best earlier run, or `_NOWHERE`."""
        key = hash(tuple(token_ids[len(token_ids) - self._shortest :]))
        end = self._last_end.get(key, _NOWHERE)
        best_end, best_length = _NOWHERE, self._shortest - 1
        for _ in range(MAX_CANDIDATES):
            if end == _NOWHERE or best_length == self._longest:
                break
            length = self._common_length(token_ids, end)
            if length > best_length:
                best_end, best_length = end, length
            end = self._end_before[end - self._first]
        return best_end

    def _common_length(self, token_ids: Sequence[int], end: int) -> int:
        """How many tokens up to `end` equal the last ones, at most the longest run."""
        last = len(token_ids) - 1
        most = min(self._longest, end + 1)
        for length in range(most):
            if token_ids[end - length] != token_ids[last - length]:
                return length
        return most
