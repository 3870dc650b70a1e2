"""The tokens of a model as bytes: what grammars go by, and the way from text to tokens for drafts.

Filled by `vocabulary_client`; it knows no tokenizer beyond the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Immutable; any thread may read it."""

    token_bytes: Sequence[bytes]
    """By token id; empty where the id is not used."""
    special_token_ids: frozenset[int]
    """Tokens that stand for no text."""
    fingerprint: str
    """Of the tokenizer; equal to the model's when both have the same vocabulary."""


class GreedyEncoder:
    """Cuts text into the longest tokens there are, from the left; any thread may call it.

    That is often, not always, how the model's own tokenizer would cut it: good enough for drafts,
    which a step verifies.
    """

    def __init__(self, token_bytes: Sequence[bytes], special_token_ids: frozenset[int]) -> None:
        self._ids: dict[bytes, int] = {}
        for token_id, token in enumerate(token_bytes):
            if token and token_id not in special_token_ids:
                self._ids.setdefault(token, token_id)
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: bytes, max_tokens: int | None = None) -> list[int]:
        """Token ids of the text, up to the first byte that no token begins with."""
        token_ids: list[int] = []
        start = 0
        while start < len(text) and (max_tokens is None or len(token_ids) < max_tokens):
            for end in range(min(len(text), start + self._longest), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    token_ids.append(token_id)
                    start = end
                    break
            else:
                break
        return token_ids
