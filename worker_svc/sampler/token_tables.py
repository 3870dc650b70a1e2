"""The token ids that a request's parameters name, as tensors made once for all of its steps.

A request may name thousands of ids: making tensors of them in each step, or going through them one
by one, would slow every other request of the batch. Kept by the sampling table; read by the
processors. Knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pagewire.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class BadWords:
    """Bad words by what comes before their last token; the last tokens are what is masked."""

    by_prefix: dict[tuple[int, ...], torch.Tensor]
    """Last token ids, int64 [num_words] each; the empty prefix has the words of one token."""
    prefix_lengths: tuple[int, ...]
    """The lengths that prefixes have, in rising order."""

    @classmethod
    def from_words(cls, words: Iterable[tuple[int, ...]]) -> BadWords:
        last_ids: dict[tuple[int, ...], list[int]] = {}
        for word in words:
            last_ids.setdefault(word[:-1], []).append(word[-1])
        by_prefix = {prefix: _ids(token_ids) for prefix, token_ids in last_ids.items()}
        return cls(by_prefix, tuple(sorted({len(prefix) for prefix in by_prefix})))


@dataclass(frozen=True, slots=True)
class TokenTables:
    """Token ids of one request, int64 [number of ids]; None where it names none."""

    allowed: torch.Tensor | None
    biased: torch.Tensor | None
    biases: torch.Tensor | None
    """float32, one for each of `biased`."""
    stops: torch.Tensor | None
    """Of `stop_token_ids`, for `min_tokens`; None without `min_tokens`."""
    bad_words: BadWords | None

    @property
    def is_empty(self) -> bool:
        named = (self.allowed, self.biased, self.stops, self.bad_words)
        return all(table is None for table in named)

    @classmethod
    def from_params(cls, params: SamplingParams) -> TokenTables:
        bias = params.logit_bias
        return cls(
            allowed=_ids(params.allowed_token_ids) if params.allowed_token_ids else None,
            biased=_ids(token_id for token_id, _ in bias) if bias else None,
            biases=torch.tensor([value for _, value in bias]) if bias else None,
            stops=_ids(params.stop_token_ids) if params.min_tokens else None,
            bad_words=BadWords.from_words(params.bad_words_token_ids)
            if params.bad_words_token_ids
            else None,
        )


def _ids(token_ids: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64)
