"""What the sampler needs to know of the places it samples at, as columns, and what it gives.

A place is a row of logits: a request has one, and one more for each of its drafts. Made by the
sampling table. Knows nothing of handles or blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from worker_svc.sampler.token_counts import CountedTokens
from worker_svc.sampler.token_tables import TokenTables
from worker_svc.step import RowFailure

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Seeds = npt.NDArray[np.uint64]


class Need(IntEnum):
    """Bits: what a request asks for beyond the largest logit. Places without are left alone."""

    PROCESSORS = 1
    """Allowed ids, bad words, min_tokens, logit_bias or penalties."""
    DRAW = 2
    """A temperature."""
    LOGPROBS = 4


@dataclass(frozen=True, slots=True)
class ProcessedRow:
    """One place whose logits are changed before a token is chosen."""

    place: int
    tables: TokenTables
    is_below_min_tokens: bool
    output_tail: Sequence[int]
    """The last output tokens, as many as the longest bad word has before its last one."""
    penalized: CountedTokens | None
    """None without penalties."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The places of a step; columns are [num_places]."""

    needs: npt.NDArray[np.uint8]
    """Bits of `Need`."""
    temperatures: Float32s
    """1 where greedy."""
    log_min_p: Float64s
    """-inf without min_p."""
    top_k: Ints
    """0 without."""
    top_p: Float64s
    seeds: Seeds
    """64 bits."""
    output_indices: Ints
    """How many output tokens, drafts before the place counted, precede the draw."""
    num_logprobs: Ints
    """Of the likeliest tokens; means nothing without the need."""
    processed: Sequence[ProcessedRow] = ()
    logprob_token_ids: Mapping[int, Ints] = field(default_factory=dict)
    """By place, what is reported in place of the likeliest tokens, of which none are asked for."""
    forced: Mapping[int, int] = field(default_factory=dict)
    """By place, the token that comes whatever its logits are, if a grammar mask allows it."""

    def __len__(self) -> int:
        return len(self.needs)

    @property
    def has_processors(self) -> bool:
        """Whether logits are changed anywhere."""
        return bool(self.processed or self.forced)

    @property
    def processed_places(self) -> Ints:
        """Indices of the places whose logits are changed, in rising order."""
        places = {row.place for row in self.processed}.union(self.forced)
        return np.array(sorted(places), dtype=np.int64)

    def places_with(self, need: Need) -> Ints:
        """Indices of the places that have a need, in rising order."""
        return (self.needs & int(need)).nonzero()[0]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One entry a place, in the order of the places."""

    token_ids: Ints
    failures: Sequence[RowFailure | None]
    """Why a place has no token; its token id means nothing then."""
    logprobs: Sequence[TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The sampled token first, then the likeliest in falling order, or those that were named."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    sampled_rank: int
    """1 is the likeliest token of the vocabulary."""
