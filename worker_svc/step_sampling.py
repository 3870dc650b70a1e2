"""From the last hidden states of a step to its output: masks, sampling, verification, columns.

Owns which place of the states, and of their logits, belongs to which row: a row with k drafts has
k + 1 places, side by side, every other row one. All places go through one call of the sampler, or,
where all rows want no more than the token of their largest logit, to a model that finds it without
logits. Knows nothing of layers and blocks. Called by the model runner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch

from worker_svc.grammar_masks import Bitmasks, MaskSource
from worker_svc.models.base import GreedyChooser
from worker_svc.prompt_logprobs import take_prompt_logprobs
from worker_svc.request_state import BatchRow
from worker_svc.sampler.base import StepSampler
from worker_svc.sampler.grammar import MaskedRows
from worker_svc.sampler.metadata import Float32s, Ints, SamplerOutput, TokenLogprobs
from worker_svc.sampler.sampler import row_failures
from worker_svc.sampler.table import SamplingTable
from worker_svc.sampler.verification import count_verified
from worker_svc.step import (
    FailedRow,
    LogprobColumns,
    ModelRunnerOutput,
    RowFailure,
    SchedulerOutput,
    StepTimings,
)


@dataclass(slots=True)  # frozen ones take three times as long to make, for each row of each step
class SampledRow:
    """What one row got: no token, one, or several with drafts. Never changed."""

    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    """One for each token."""


class Head(Protocol):
    """What chooses tokens from hidden states."""

    sampler: StepSampler
    choose_greedily: GreedyChooser | None
    """See `ChoosesGreedily`; None: tokens are chosen from logits alone."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


def prepare_sampling(
    head: Head,
    table: SamplingTable,
    step: SchedulerOutput,
    rows: Sequence[BatchRow],
    states: torch.Tensor,
    masks: MaskSource,
) -> Callable[[], dict[int, SampledRow]]:
    """Do the model's part of choosing tokens; what is returned does the rest, see `sample_rows`.

    Args:
        head: The model's.
        table: Sampling state of the requests.
        step: The step that computed the rows.
        rows: Those that sample.
        states: [sum of the rows' places, hidden_size].
        masks: See `sample_rows`.
    """
    choose = None if step.masked_handles else head.choose_greedily
    if choose is not None and table.are_plain([row.state.slot for row in rows]):
        token_ids, largest = choose(states)
        return partial(append_largest, table, rows, token_ids, largest)
    logits = head.compute_logits(states)
    return partial(sample_rows, head.sampler, table, step, rows, logits, masks)


def sample_rows(
    sampler: StepSampler,
    table: SamplingTable,
    step: SchedulerOutput,
    rows: Sequence[BatchRow],
    logits: torch.Tensor,
    masks: MaskSource,
) -> dict[int, SampledRow]:
    """Sample, append the tokens to their requests, and mark rows that failed or ended.

    Args:
        sampler: The model's.
        table: Sampling state of the requests.
        step: The step that computed the rows.
        rows: Those that sample.
        logits: [sum of the rows' places, vocab_size] float32; they are changed.
        masks: Waits for the step's grammar masks; called only if one of the rows is masked.

    Returns:
        By handle, without rows that got no token.
    """
    if not rows:
        return {}
    masked = None
    if step.masked_handles:
        rows, logits, masked = _await_masks(step, rows, logits, masks)
        if not rows:
            return {}
    drafts = {
        index: row.draft_token_ids.tolist() for index, row in enumerate(rows) if row.num_drafts
    }
    batch = table.gather([row.state.slot for row in rows], drafts)
    return _append(table, rows, sampler.sample(logits, batch, masked))


def append_largest(
    table: SamplingTable, rows: Sequence[BatchRow], token_ids: Ints, largest: Float32s
) -> dict[int, SampledRow]:
    """What `sample_rows` does, for rows that want the tokens of their largest logits.

    Args:
        table: Sampling state of the requests.
        rows: Those that sample.
        token_ids: [sum of the rows' places], of the largest logits.
        largest: The same, those logits: NaN where a place has any.
    """
    if len(token_ids) == len(rows) and np.isfinite(largest).all():
        return _append_one_each(table, rows, token_ids.tolist())
    failures = row_failures(largest < np.inf, largest == -np.inf)
    return _append(table, rows, SamplerOutput(token_ids, failures, [None] * len(token_ids)))


def _append_one_each(
    table: SamplingTable, rows: Sequence[BatchRow], token_ids: Sequence[int]
) -> dict[int, SampledRow]:
    """Most steps: no row has drafts, none fails, and none wants logprobs."""
    sampled, no_logprobs = {}, (None,)
    for row, token_id in zip(rows, token_ids, strict=True):
        row.state.append_token(token_id)
        sampled[row.state.handle] = SampledRow((token_id,), no_logprobs)
    table.append_one_each([row.state.slot for row in rows])
    return sampled


def make_output(
    step: int,
    rows: Sequence[BatchRow],
    sampled: Mapping[int, SampledRow],
    timings: StepTimings,
) -> ModelRunnerOutput:
    """The columns of a step's output, for all of its rows in the step's own order."""
    handles = [row.state.handle for row in rows]
    prompts = take_prompt_logprobs(rows, sampled)
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
        prompt_logprobs={handle: _columns(entries) for handle, entries in prompts.items()},
        timings=timings,
    )


def _await_masks(
    step: SchedulerOutput, rows: Sequence[BatchRow], logits: torch.Tensor, masks: MaskSource
) -> tuple[Sequence[BatchRow], torch.Tensor, MaskedRows | None]:
    """The rows without those that have ended, their logits, and their masks."""
    handles = set(step.masked_handles).intersection(row.state.handle for row in rows)
    if not handles:
        return rows, logits, None
    by_handle = masks().by_handle()
    ended = handles - by_handle.keys()
    if ended:
        rows, logits = _without_ended(rows, logits, ended)
    return rows, logits, _masked_rows(rows, by_handle)


def _without_ended(
    rows: Sequence[BatchRow], logits: torch.Tensor, ended: set[int]
) -> tuple[list[BatchRow], torch.Tensor]:
    kept: list[int] = []
    for row, places in zip(rows, _places(rows), strict=True):
        row.state.is_over = row.state.handle in ended
        if not row.state.is_over:
            kept.extend(places)
    return [row for row in rows if not row.state.is_over], logits[kept]


def _masked_rows(rows: Sequence[BatchRow], by_handle: Mapping[int, Bitmasks]) -> MaskedRows | None:
    places: list[int] = []
    bitmasks = []
    for row, row_places in zip(rows, _places(rows), strict=True):
        if row.state.handle in by_handle:
            places.extend(row_places)
            bitmasks.append(by_handle[row.state.handle])
    return MaskedRows(places, np.concatenate(bitmasks)) if places else None


def _places(rows: Sequence[BatchRow]) -> list[range]:
    """Each row's places in the logits."""
    bounds = accumulate((row.num_drafts + 1 for row in rows), initial=0)
    return [range(start, end) for start, end in pairwise(bounds)]


def _append(
    table: SamplingTable, rows: Sequence[BatchRow], output: SamplerOutput
) -> dict[int, SampledRow]:
    sampled = _take_tokens(rows, output)
    given = [row.state for row in rows if row.state.handle in sampled]
    table.append(
        [state.slot for state in given], [sampled[state.handle].token_ids for state in given]
    )
    return sampled


def _take_tokens(rows: Sequence[BatchRow], output: SamplerOutput) -> dict[int, SampledRow]:
    token_ids: list[int] = output.token_ids.tolist()
    sampled, start = {}, 0
    for row in rows:
        state, num_places = row.state, row.num_drafts + 1
        num_tokens, failure = _verify(row, start, output)
        if failure is not None:
            state.fail(failure)
        if num_tokens:
            end = start + num_tokens
            tokens = token_ids[start:end]
            sampled[state.handle] = SampledRow(tokens, output.logprobs[start:end])
            state.append_sampled(tokens)
        start += num_places
    return sampled


def _verify(row: BatchRow, start: int, output: SamplerOutput) -> tuple[int, RowFailure | None]:
    """Number of tokens that count, and the failure that ended them."""
    if not row.num_drafts:
        failure = output.failures[start]
        return int(failure is None), failure
    places = slice(start, start + row.num_drafts + 1)
    return count_verified(output.token_ids[places], output.failures[places], row.draft_token_ids)


def _logprob_columns(tokens: Sequence[TokenLogprobs | None]) -> LogprobColumns | None:
    return _columns(tokens) if any(entry is not None for entry in tokens) else None


def _columns(tokens: Sequence[TokenLogprobs | None]) -> LogprobColumns:
    given = [entry for entry in tokens if entry is not None]
    return LogprobColumns(
        counts=[len(entry.token_ids) if entry else 0 for entry in tokens],
        token_ids=[token_id for entry in given for token_id in entry.token_ids],
        logprobs=[logprob for entry in given for logprob in entry.logprobs],
        sampled_ranks=[entry.sampled_rank if entry else 0 for entry in tokens],
    )
