"""The persistent state of requests on a worker, and the arrays of a step made from it.

Owns, for each request the scheduler has told us of: token ids, computed count, block table,
sampling parameters. The scheduler sends what changed; this keeps the rest. Knows nothing of models:
it makes numpy arrays, which the model runner hands on as tensors. Used from the device thread
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_svc.request_state import BatchRow, RequestState
from worker_svc.sampler.table import SamplingTable, draw_seed
from worker_svc.step import NewRequest, SchedulerOutput

Ints = npt.NDArray[np.int64]

PADDING_SLOT = -1


class StepError(ValueError):
    """The scheduler's step does not fit this worker's state: the whole step fails."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The arrays of a step. Rows of a single token first, in falling order of length.

    Padding tokens, if any, come last: token 0 at position 0, with slot -1.
    """

    rows: Sequence[BatchRow]
    token_ids: Ints
    """[num_tokens]"""
    positions: Ints
    """[num_tokens]"""
    slot_mapping: Ints
    """[num_tokens]: block_table[position // B] * B + position % B."""
    block_tables: Ints
    """[num_rows, max_num_blocks], filled up with block 0."""
    query_start_loc: Sequence[int]
    """num_rows + 1 offsets into the tokens."""
    num_single_rows: int

    @property
    def seq_lens(self) -> list[int]:
        return [row.end for row in self.rows]


class InputBatch:
    """Requests by handle. A handle that a step doesn't schedule keeps its state."""

    def __init__(self, block_size: int, max_model_len: int) -> None:
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._requests: dict[int, RequestState] = {}
        self.sampling = SamplingTable()
        """Sampling state, by the slots of requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, handle: int) -> bool:
        return handle in self._requests

    def update(self, step: SchedulerOutput) -> list[BatchRow]:
        """Applies a step's changes and gives its rows in the step's own order.

        Raises:
            StepError: An unknown or doubled handle, or a row without tokens or blocks.
        """
        for handle in (*step.finished_handles, *step.preempted_handles):
            self._forget(handle)
        for new in step.new_requests:
            if new.handle in self._requests:
                raise StepError(f"step {step.step}: handle {new.handle} is new but already known")
            if len(new.block_counts) > 1:
                raise StepError(
                    f"step {step.step}: handle {new.handle} has {len(new.block_counts)} block "
                    "tables, this worker reads one"
                )
            self._requests[new.handle] = self._new_state(new)
        self._append_blocks(step)
        if len(set(step.handles)) != len(step.handles):
            raise StepError(f"step {step.step}: a handle is scheduled twice")
        drafts = step.drafts()
        return [
            self._row(step.step, handle, num_tokens, drafts.get(handle, ()))
            for handle, num_tokens in zip(step.handles, step.num_scheduled_tokens, strict=True)
        ]

    def make_inputs(self, rows: Sequence[BatchRow], min_tokens: int = 1) -> StepInputs:
        """Arrays of the step that computes `rows`, of which there is at least one.

        Args:
            rows: What to compute, in any order.
            min_tokens: A step of fewer tokens is padded to this many.
        """
        ordered = sorted(rows, key=_batch_order)
        if ordered[-1].num_tokens == 1:
            tokens = _tokens_of_single_rows(ordered)
        else:
            tokens = _tokens_of_any_rows(ordered)
        block_tables, positions = self._block_tables(ordered), tokens.positions
        blocks = block_tables[tokens.rows, positions // self._block_size]
        slot_mapping = blocks * self._block_size + positions % self._block_size
        num_padding = max(0, min_tokens - len(positions))
        return StepInputs(
            rows=ordered,
            token_ids=_padded(tokens.token_ids, num_padding, 0),
            positions=_padded(positions, num_padding, 0),
            slot_mapping=_padded(slot_mapping, num_padding, PADDING_SLOT),
            block_tables=block_tables,
            query_start_loc=tokens.query_start_loc,
            num_single_rows=tokens.num_single_rows,
        )

    def advance(self, rows: Sequence[BatchRow]) -> None:
        """The KV of `rows` is written; that of drafts counts once they are accepted."""
        for row in rows:
            row.state.num_computed_tokens = row.known_end

    def _new_state(self, new: NewRequest) -> RequestState:
        slot = self.sampling.add(
            new.sampling.normalized(),
            draw_seed(new.sampling.seed, new.request_id),
            new.prompt_token_ids,
            new.output_token_ids,
        )
        return RequestState.from_new_request(new, slot)

    def _forget(self, handle: int) -> None:
        state = self._requests.pop(handle, None)
        if state is not None:  # A handle that is gone already is no error.
            self.sampling.remove(state.slot)

    def _append_blocks(self, step: SchedulerOutput) -> None:
        start = 0
        for handle, count in zip(step.handles, step.new_block_counts, strict=False):
            if count:
                self._get(step.step, handle).append_blocks(
                    step.new_block_ids[start : start + count]
                )
                start += count
        if start != len(step.new_block_ids):
            raise StepError(
                f"step {step.step}: {len(step.new_block_ids)} new block ids, counts say {start}"
            )

    def _row(
        self, step: int, handle: int, num_tokens: int, draft_token_ids: Sequence[int]
    ) -> BatchRow:
        state, num_drafts = self._get(step, handle), len(draft_token_ids)
        row = BatchRow(state, state.num_computed_tokens, num_tokens, num_drafts)
        if state.is_over:
            return row
        end, known_end = row.end, row.known_end
        fits = row.start < known_end <= state.num_tokens
        if not fits or (num_drafts and known_end < state.num_tokens):
            raise StepError(
                f"step {step}: handle {handle} has {state.num_tokens} tokens, "
                f"{row.start} computed, {num_tokens} scheduled, {num_drafts} of them drafts"
            )
        if end > min(state.num_blocks * self._block_size, self._max_model_len):
            raise StepError(
                f"step {step}: handle {handle} reaches {row.end} tokens with {state.num_blocks} "
                f"blocks of {self._block_size} and max_model_len {self._max_model_len}"
            )
        if num_drafts:
            state.put_drafts(draft_token_ids)
        return row

    def _get(self, step: int, handle: int) -> RequestState:
        state = self._requests.get(handle)
        if state is None:
            raise StepError(f"step {step}: handle {handle} is not known")
        return state

    def _block_tables(self, rows: Sequence[BatchRow]) -> Ints:
        used = [-(-row.end // self._block_size) for row in rows]
        tables = np.zeros((len(rows), max(used)), dtype=np.int64)
        for table, row, num_blocks in zip(tables, rows, used, strict=True):
            table[:num_blocks] = row.state.block_ids[:num_blocks]
        return tables


@dataclass(frozen=True, slots=True)
class _StepTokens:
    """The tokens of a step; arrays are [num_tokens] int64."""

    token_ids: Ints
    positions: Ints
    rows: Ints
    """Index of each token's row."""
    query_start_loc: list[int]
    num_single_rows: int


def _tokens_of_any_rows(rows: Sequence[BatchRow]) -> _StepTokens:
    counts = np.array([row.num_tokens for row in rows])
    query_start_loc = np.concatenate(([0], np.cumsum(counts)))
    starts = np.array([row.start for row in rows])
    # Position of a token: its place in the step, shifted from its row's offset to its start.
    shifts = np.repeat(starts - query_start_loc[:-1], counts)
    token_ids = [row.state.token_ids[row.start : row.end] for row in rows]
    return _StepTokens(
        token_ids=np.concatenate(token_ids, dtype=np.int64),
        positions=np.arange(query_start_loc[-1]) + shifts,
        rows=np.repeat(np.arange(len(rows)), counts),
        query_start_loc=query_start_loc.tolist(),
        num_single_rows=int((counts == 1).sum()),
    )


def _tokens_of_single_rows(rows: Sequence[BatchRow]) -> _StepTokens:
    """The same, of rows of one token each, which most steps have: with less work."""
    num_rows = len(rows)
    return _StepTokens(
        token_ids=np.array([row.state.token_ids[row.start] for row in rows], dtype=np.int64),
        positions=np.array([row.start for row in rows], dtype=np.int64),
        rows=np.arange(num_rows),
        query_start_loc=list(range(num_rows + 1)),
        num_single_rows=num_rows,
    )


def _padded(values: Ints, num_padding: int, value: int) -> Ints:
    if not num_padding:
        return values
    return np.pad(values, (0, num_padding), constant_values=value)


def _batch_order(row: BatchRow) -> tuple[bool, int]:
    return (row.num_tokens > 1, -row.end)
