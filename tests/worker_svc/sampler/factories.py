"""Requests and places for the sampler's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.sampling_params import SamplingParams
from worker_svc.sampler.metadata import SamplingBatch
from worker_svc.sampler.table import SamplingTable


@dataclass(frozen=True)
class Row:
    """One request that samples."""

    params: SamplingParams
    """Normalized."""
    seed: int
    prompt: Sequence[int]
    output: Sequence[int]


def make_row(
    *,
    prompt: Sequence[int] = (1,),
    output: Sequence[int] = (),
    seed: int = 0,
    **params: Any,
) -> Row:
    return Row(SamplingParams(**params).normalized(), seed, prompt, output)


def make_batch(
    rows: Sequence[Row], drafts: Mapping[int, Sequence[int]] | None = None
) -> SamplingBatch:
    """The places of requests that have just come, new or resumed."""
    table = SamplingTable()
    slots = [table.add(row.params, row.seed, row.prompt, row.output) for row in rows]
    return table.gather(slots, drafts)
