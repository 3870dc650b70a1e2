"""How many tokens of outputs are reasoning: counted by the tokens of the tags, so exactly.

Where a tag is not one token of the vocabulary there is no count: text cannot be told apart by
tokens there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.reasoning.think_tags import Begin


@dataclass(frozen=True, slots=True)
class TagTokens:
    """The tags as token ids."""

    open_id: int
    close_id: int


class ReasoningTokenCounter:
    """Counts over the outputs of one request. The tags themselves do not count."""

    def __init__(self, tags: TagTokens, begin: Begin) -> None:
        self.num_tokens = 0
        self._tags = tags
        self._begin = begin
        self._is_reasoning: dict[int, bool] = {}
        self._ended: set[int] = set()

    def push(self, index: int, token_ids: Sequence[int]) -> None:
        """Take in the next tokens of one output."""
        if index in self._ended or self._begin is Begin.ANSWER:
            return
        is_reasoning = self._is_reasoning.get(index, self._begin is Begin.REASONING)
        for token_id in token_ids:
            if token_id == self._tags.close_id and is_reasoning:
                self._ended.add(index)
                return
            if token_id == self._tags.open_id:
                is_reasoning = True
            else:
                self.num_tokens += is_reasoning
        self._is_reasoning[index] = is_reasoning
