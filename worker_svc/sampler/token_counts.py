"""Which tokens a request has seen, and how often: what penalties look at.

Kept from token to token, as long as the request runs, and as long as the number of different
tokens, not as the vocabulary. Owned by the sampling table; knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_INITIAL_SIZE = 64


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of one request."""

    repetition: float
    frequency: float
    presence: float


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """The tokens that the penalties of one place look at, each once."""

    penalties: Penalties
    token_ids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.float32]
    """Occurrences in the output: 0 for a token of the prompt alone."""


class TokenCounts:
    """Occurrences in the output; the prompt's tokens are in it only for a repetition penalty."""

    def __init__(
        self,
        penalties: Penalties,
        prompt_token_ids: Sequence[int] | npt.NDArray[np.int32],
        output_token_ids: Iterable[int],
    ) -> None:
        self._penalties = penalties
        seen = np.unique(prompt_token_ids) if penalties.repetition != 1.0 else np.empty(0)
        size = max(_INITIAL_SIZE, 2 * len(seen))
        self._token_ids = np.zeros(size, dtype=np.int64)
        self._counts = np.zeros(size, dtype=np.float32)
        self._token_ids[: len(seen)] = seen
        self._index_of = {token_id: index for index, token_id in enumerate(seen.tolist())}
        self.append(output_token_ids)

    def append(self, token_ids: Iterable[int]) -> None:
        """Count more output tokens."""
        for token_id in token_ids:
            index = self._index_of.setdefault(token_id, len(self._index_of))
            if index == len(self._token_ids):
                self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._token_ids[index] = token_id
            self._counts[index] += 1

    def current(self) -> CountedTokens:
        """What is counted now; valid until the next change."""
        size = len(self._index_of)
        return CountedTokens(self._penalties, self._token_ids[:size], self._counts[:size])

    def after_each(self, draft_token_ids: Sequence[int]) -> list[CountedTokens]:
        """What would be counted after no draft, after the first, and so on; nothing is kept."""
        size, counted = len(self._index_of), [self._copy()]
        for draft in draft_token_ids:
            self.append((draft,))
            counted.append(self._copy())
        for draft in draft_token_ids:
            self._counts[self._index_of[draft]] -= 1
        while len(self._index_of) > size:
            self._index_of.popitem()
        return counted

    def _copy(self) -> CountedTokens:
        now = self.current()
        return CountedTokens(now.penalties, now.token_ids.copy(), now.counts.copy())
