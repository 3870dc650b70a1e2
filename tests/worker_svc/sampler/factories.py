"""Rows for the sampler's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pagewire.sampling_params import SamplingParams
from worker_svc.sampler.metadata import SamplingRow
from worker_svc.sampler.token_tables import TokenTables


def make_row(
    *,
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    seed: int = 0,
    **params: Any,
) -> SamplingRow:
    normalized = SamplingParams(**params).normalized()
    return SamplingRow(
        params=normalized,
        tables=TokenTables.from_params(normalized),
        seed=seed,
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        output_token_ids=np.array(output, dtype=np.int32),
    )
