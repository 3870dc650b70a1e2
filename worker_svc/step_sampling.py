"""From the logits of a step to its output: grammar masks, sampling, verification, columns.

Owns which place of the logits belongs to which row: a row with k drafts has k + 1 places, side by
side, every other row one. All places go through one call of the sampler. Knows nothing of models
and blocks. Called by the model runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch

from worker_svc.grammar_masks import Bitmasks, MaskSource
from worker_svc.request_state import BatchRow
from worker_svc.sampler.grammar import MaskedRows
from worker_svc.sampler.metadata import SamplerOutput, TokenLogprobs
from worker_svc.sampler.sampler import Sampler
from worker_svc.sampler.verification import count_verified
from worker_svc.step import (
    FailedRow,
    LogprobColumns,
    ModelRunnerOutput,
    RowFailure,
    SchedulerOutput,
    StepTimings,
)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What one row got: no token, one, or several with drafts."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    """One for each token."""


def sample_rows(
    sampler: Sampler,
    step: SchedulerOutput,
    rows: Sequence[BatchRow],
    logits: torch.Tensor,
    masks: MaskSource,
) -> dict[int, SampledRow]:
    """Sample, append the tokens to their requests, and mark rows that failed or ended.

    Args:
        sampler: The model's.
        step: The step that computed the rows.
        rows: Those that sample.
        logits: [sum of the rows' places, vocab_size] float32; they are changed.
        masks: Waits for the step's grammar masks; called only if one of the rows is masked.

    Returns:
        By handle, without rows that got no token.
    """
    if not rows:
        return {}
    places, masked = _places(rows), None
    handles = set(step.masked_handles).intersection(row.state.handle for row in rows)
    if handles:
        by_handle = masks().by_handle()
        if not handles <= by_handle.keys():
            rows, logits = _without_ended(rows, places, logits, handles - by_handle.keys())
            places = _places(rows)
        masked = _masked_rows(rows, places, by_handle)
    sampling_rows = [
        row.state.sampling_row(place) for row in rows for place in range(row.num_drafts + 1)
    ]
    if not sampling_rows:
        return {}
    return _take_tokens(rows, places, sampler.sample(logits, sampling_rows, masked))


def make_output(
    step: int,
    rows: Sequence[BatchRow],
    sampled: Mapping[int, SampledRow],
    timings: StepTimings,
) -> ModelRunnerOutput:
    """The columns of a step's output, for all of its rows in the step's own order."""
    handles = [row.state.handle for row in rows]
    given = [sampled[handle] for handle in handles if handle in sampled]
    return ModelRunnerOutput(
        step=step,
        handles=handles,
        num_sampled=[
            len(sampled[handle].token_ids) if handle in sampled else 0 for handle in handles
        ],
        sampled_token_ids=[token_id for row in given for token_id in row.token_ids],
        failed=[
            FailedRow(row.state.handle, row.state.failure)
            for row in rows
            if row.state.failure is not None
        ],
        logprobs=_logprob_columns([entry for row in given for entry in row.logprobs]),
        timings=timings,
    )


def _places(rows: Sequence[BatchRow]) -> list[slice]:
    """Each row's places in the logits."""
    bounds = accumulate((row.num_drafts + 1 for row in rows), initial=0)
    return [slice(start, end) for start, end in pairwise(bounds)]


def _without_ended(
    rows: Sequence[BatchRow], places: Sequence[slice], logits: torch.Tensor, ended: set[int]
) -> tuple[list[BatchRow], torch.Tensor]:
    """Mark requests that have ended, and leave their rows out."""
    kept: list[int] = []
    for row, place in zip(rows, places, strict=True):
        row.state.ended = row.state.handle in ended
        if not row.state.ended:
            kept.extend(range(place.start, place.stop))
    return [row for row in rows if not row.state.ended], logits[kept]


def _masked_rows(
    rows: Sequence[BatchRow], places: Sequence[slice], by_handle: Mapping[int, Bitmasks]
) -> MaskedRows | None:
    found = [
        (place, by_handle[row.state.handle])
        for row, place in zip(rows, places, strict=True)
        if row.state.handle in by_handle
    ]
    if not found:
        return None
    return MaskedRows(
        places=[index for place, _ in found for index in range(place.start, place.stop)],
        bitmasks=np.concatenate([bitmasks for _, bitmasks in found]),
    )


def _take_tokens(
    rows: Sequence[BatchRow], places: Sequence[slice], output: SamplerOutput
) -> dict[int, SampledRow]:
    token_ids: list[int] = output.token_ids.tolist()
    sampled = {}
    for row, place in zip(rows, places, strict=True):
        num_tokens, failure = _verify(row, place, output)
        row.state.failure = failure
        if num_tokens:
            end = place.start + num_tokens
            tokens = token_ids[place.start : end]
            sampled[row.state.handle] = SampledRow(tokens, output.logprobs[place.start : end])
            row.state.append_sampled(tokens)
    return sampled


def _verify(row: BatchRow, place: slice, output: SamplerOutput) -> tuple[int, RowFailure | None]:
    """Number of tokens that count, and the failure that ended them."""
    failures = output.failures[place]
    if not row.num_drafts:
        return (1, None) if failures[0] is None else (0, failures[0])
    return count_verified(output.token_ids[place], failures, row.draft_token_ids)


def _logprob_columns(tokens: Sequence[TokenLogprobs | None]) -> LogprobColumns | None:
    given = [entry for entry in tokens if entry is not None]
    if not given:
        return None
    return LogprobColumns(
        counts=[len(entry.token_ids) if entry else 0 for entry in tokens],
        token_ids=[token_id for entry in given for token_id in entry.token_ids],
        logprobs=[logprob for entry in given for logprob in entry.logprobs],
        sampled_ranks=[entry.sampled_rank if entry else 0 for entry in tokens],
    )
