"""How many drafts of one request are worth verifying, from how many were right lately.

A verified draft costs the step a token, and a request that is drafted for gives up its overlap; so
wrong guesses make drafts fewer and then pause them, right ones bring them back. Pure counting.
"""

from __future__ import annotations

MAX_PAUSE_TOKENS = 63
"""Longest pause after steps whose drafts were all wrong, in output tokens."""


class DraftLength:
    """Begins with as many as allowed.

    All right: twice as many next time. Some right: one more than were right. None right: half as
    many, and after the n-th such step in a row none at all for 2^(n-1) - 1 tokens.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = most
        self._next_pause = 0
        self._resumes_at = 0

    def limit(self, num_output_tokens: int) -> int:
        """Most drafts after this many output tokens; 0 in a pause."""
        return self._length if num_output_tokens >= self._resumes_at else 0

    def record(self, num_drafts: int, num_accepted: int, num_output_tokens: int) -> None:
        """Take in what a verification gave.

        Args:
            num_drafts: At least 1.
            num_accepted: How many of them were right.
            num_output_tokens: The request's, afterwards.
        """
        if num_accepted == num_drafts:
            self._length = min(self._most, max(self._length, 2 * num_drafts))
        elif num_accepted:
            self._length = num_accepted + 1
        else:
            self._length = max(1, self._length // 2)
            self._resumes_at = num_output_tokens + self._next_pause
            self._next_pause = min(2 * self._next_pause + 1, MAX_PAUSE_TOKENS)
        if num_accepted:
            self._next_pause = 0
