"""Where an output stands in the form that its request demands; the seam to whatever knows forms.

The scheduler goes by `Grammar` alone: it asks for masks and drafts and tells what was drawn. Which
library stands behind one, how it came to be and on which thread its masks are made is not known
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

INVALID_GRAMMAR = "INVALID_GRAMMAR"
"""The form is wrong, or asks for something that is not supported."""
GRAMMAR_TOO_COMPLEX = "GRAMMAR_TOO_COMPLEX"
"""A limit on the work for one grammar was met."""
GRAMMAR_TIMEOUT = "GRAMMAR_TIMEOUT"
"""The grammar was not ready in time."""
GRAMMAR_MISMATCH = "GRAMMAR_MISMATCH"
"""Tokens that the request has already are not of the form."""
NOT_SERVED = "STRUCTURED_OUTPUTS_NOT_SERVED"
"""This engine knows no tokens' text, so it can follow no form."""


class GrammarError(Exception):
    """A request whose form can't be followed.

    Attributes:
        reason: UPPER_SNAKE_CASE, stable, for programs.
        message: One sentence for the client; says what to change and holds no internals.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Grammar(Protocol):
    """Where one request's output stands in its form.

    Belongs to one request. Its methods are never called from two threads at once: while `masks`
    runs, its owner calls nothing.
    """

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end can follow: the output is whole without an EOS token."""
        ...

    def accept(self, token_id: int) -> bool:
        """Move on by a token that was drawn.

        Returns:
            False if the form doesn't allow it; the grammar is of no more use then.
        """
        ...

    def forced_tokens(self, max_tokens: int) -> list[int]:
        """Tokens for the text that must follow, as drafts: at most so many, maybe none.

        The text is certain, how the model would cut it into tokens is not.
        """
        ...

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted in a row from here; changes nothing."""
        ...

    def masks(self, draft_token_ids: Sequence[int]) -> bytes:
        """Which tokens are allowed here and after each draft; changes nothing.

        Called on a worker thread. Rows that nobody will use (after a draft that is not allowed,
        or beyond the end of the form) are all ones.

        Returns:
            1 + len(draft_token_ids) rows of ceil(vocab_size / 8) bytes, lowest bit first.

        Raises:
            GrammarError: A limit was met, or no token is allowed.
        """
        ...
