"""Grammars for tests: a text of given tokens, without any library."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.grammar import Grammar, GrammarError


class TextGrammar(Grammar):
    """Exactly these tokens, one after another; complete behind the last one."""

    def __init__(self, token_ids: Sequence[int], *, is_open: bool = False) -> None:
        self.token_ids = list(token_ids)
        self.num_accepted = 0
        self.num_masks = 0
        self.mask_error: GrammarError | None = None
        self._is_open = is_open
        """Anything may follow the text, so it never is complete."""

    @property
    def is_complete(self) -> bool:
        return self.num_accepted >= len(self.token_ids) and not self._is_open

    def accept(self, token_id: int) -> bool:
        self.num_accepted += 1
        return self.valid_from(self.num_accepted - 1, token_id)

    def valid_from(self, place: int, token_id: int) -> bool:
        if place >= len(self.token_ids):
            return self._is_open
        return self.token_ids[place] == token_id

    def forced_tokens(self, max_tokens: int) -> list[int]:
        return self.token_ids[self.num_accepted : self.num_accepted + max_tokens]

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if not self.valid_from(self.num_accepted + index, token_id):
                return index
        return len(token_ids)

    def masks(self, draft_token_ids: Sequence[int]) -> bytes:
        self.num_masks += 1
        if self.mask_error is not None:
            raise self.mask_error
        return bytes([self.num_accepted]) * (1 + len(draft_token_ids))
