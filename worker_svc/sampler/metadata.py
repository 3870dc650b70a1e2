"""What the sampler needs to know of each row, as columns.

Built by the input batch for the rows that sample in a step. Knows nothing of handles or blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagewire.sampling_params import SamplingParams
from worker_svc.sampler.token_tables import TokenTables
from worker_svc.step import RowFailure


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row: its parameters, and the token ids that penalties and `min_tokens` look at."""

    params: SamplingParams
    """Normalized."""
    tables: TokenTables
    """The token ids that `params` names."""
    seed: int
    """64 bits, unsigned."""
    prompt_token_ids: npt.NDArray[np.int32]
    output_token_ids: npt.NDArray[np.int32]
    """Outputs so far; their number is the output index of the draw."""

    @property
    def output_index(self) -> int:
        return len(self.output_token_ids)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One entry a row, in the order of the rows."""

    token_ids: npt.NDArray[np.int64]
    failures: Sequence[RowFailure | None]
    """Why a row has no token; its token id means nothing then."""
    logprobs: Sequence[TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The sampled token first, then the likeliest in falling order."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    sampled_rank: int
    """1 is the likeliest token of the vocabulary."""
