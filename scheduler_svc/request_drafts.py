"""Guesses for one request, as many as have been worth it lately.

Tokens that the request's grammar forces come first, then what the engine's drafter proposes. It
knows no blocks and no steps; `speculation` says how many drafts fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.draft_length import DraftLength
from scheduler_svc.drafter import Drafter, DraftSource
from scheduler_svc.grammar import Grammar

MAX_FORCED_DRAFTS = 16
"""Most tokens that a grammar forces and one step verifies."""


class RequestDrafts:
    """Guesses for one request, fewer while they are wrong."""

    def __init__(self, drafter: Drafter | None, grammar: Grammar | None) -> None:
        self._grammar = grammar
        self._source: DraftSource | None = None if drafter is None else drafter.begin()
        self._guessed = DraftLength(0 if drafter is None else drafter.max_drafts)
        self._forced = DraftLength(MAX_FORCED_DRAFTS)
        self._last_used = self._guessed
        self._is_held = False

    def propose(
        self,
        token_ids: Sequence[int],
        num_output_tokens: int,
        max_tokens: int,
        num_under_way: int = 0,
    ) -> Sequence[int]:
        """Return guesses of what follows; empty: none is worth it now.

        Args:
            token_ids: Prompt and output that are known.
            num_output_tokens: How many of them are output.
            max_tokens: Most guesses wanted behind the tokens under way.
            num_under_way: Tokens that come anyhow; guesses of them are the first ones, and more
                than are wanted.
        """
        drafts: Sequence[int] = ()
        if self._grammar is not None:
            self._last_used = self._forced
            limit = min(max_tokens, self._forced.limit(num_output_tokens))
            if limit > 0:
                drafts = self._grammar.forced_tokens(limit + num_under_way)
        if not drafts and self._source is not None:
            self._last_used = self._guessed
            limit = min(max_tokens, self._guessed.limit(num_output_tokens))
            if limit > 0:
                drafts = self._source.propose(token_ids, limit + num_under_way)
            if drafts and self._grammar is not None:
                drafts = drafts[: self._grammar.valid_prefix(drafts)]
        return drafts

    def hold(self, is_held: bool) -> bool:
        """Note whether the request gives up its overlap for drafts behind the token under way."""
        self._is_held |= is_held
        return is_held

    def end_hold(self, num_output_tokens: int) -> None:
        """Note that there are no drafts: overlap given up for them counts as a wrong one."""
        if self._is_held:
            self.record(1, 0, num_output_tokens)

    def record(self, num_drafts: int, num_accepted: int, num_output_tokens: int) -> None:
        """Take in what the last guesses came to."""
        self._is_held = False
        self._last_used.record(num_drafts, num_accepted, num_output_tokens)
