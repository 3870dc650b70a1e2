"""The persistent state of requests on a worker, and the arrays of a step made from it.

Owns, for each request the scheduler has told us of: token ids, computed count, block table,
sampling parameters. The scheduler sends what changed; this keeps the rest. Knows nothing of models:
it makes numpy arrays, which the model runner hands on as tensors. Used from the device thread
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagewire.sampling_params import SamplingParams
from worker_svc.sampler.metadata import SamplingRow
from worker_svc.sampler.token_tables import TokenTables
from worker_svc.step import NewRequest, RowFailure, SchedulerOutput

Ints = npt.NDArray[np.int64]

PADDING_SLOT = -1
_SEED_MASK = 2**64 - 1
_INITIAL_TOKENS = 256
_INITIAL_BLOCKS = 16


class StepError(ValueError):
    """The scheduler's step does not fit this worker's state: the whole step fails."""


@dataclass(slots=True)
class RequestState:
    """One request. `num_computed_tokens` counts tokens whose KV is written or being written."""

    handle: int
    params: SamplingParams
    seed: int
    num_prompt_tokens: int
    num_tokens: int
    """Prompt and output tokens known."""
    num_computed_tokens: int
    num_blocks: int
    token_ids: npt.NDArray[np.int32]
    """Grows by doubling; the first `num_tokens` are meant."""
    block_ids: npt.NDArray[np.int32]
    """Grows by doubling; the first `num_blocks` are meant."""
    failure: RowFailure | None = None
    """Why no later step can sample for it."""
    tables: TokenTables | None = None
    """Made when it first samples."""

    @classmethod
    def from_new_request(cls, new: NewRequest) -> RequestState:
        tokens = [*new.prompt_token_ids, *new.output_token_ids]
        state = cls(
            handle=new.handle,
            params=new.sampling.normalized(),
            seed=_seed(new),
            num_prompt_tokens=len(new.prompt_token_ids),
            num_tokens=0,
            num_computed_tokens=new.num_computed_tokens,
            num_blocks=0,
            token_ids=np.zeros(max(_INITIAL_TOKENS, len(tokens)), dtype=np.int32),
            block_ids=np.zeros(max(_INITIAL_BLOCKS, len(new.block_ids)), dtype=np.int32),
        )
        state.append_tokens(tokens)
        state.append_blocks(new.block_ids)
        return state

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        self.token_ids = _with_room(self.token_ids, self.num_tokens + len(token_ids))
        self.token_ids[self.num_tokens : self.num_tokens + len(token_ids)] = token_ids
        self.num_tokens += len(token_ids)

    def append_blocks(self, block_ids: Sequence[int]) -> None:
        self.block_ids = _with_room(self.block_ids, self.num_blocks + len(block_ids))
        self.block_ids[self.num_blocks : self.num_blocks + len(block_ids)] = block_ids
        self.num_blocks += len(block_ids)

    def sampling_row(self) -> SamplingRow:
        if self.tables is None:
            self.tables = TokenTables.from_params(self.params)
        return SamplingRow(
            params=self.params,
            tables=self.tables,
            seed=self.seed,
            prompt_token_ids=self.token_ids[: self.num_prompt_tokens],
            output_token_ids=self.token_ids[self.num_prompt_tokens : self.num_tokens],
        )


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One scheduled request of a step: tokens [start, start + num_tokens) of its sequence."""

    state: RequestState
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """The step computes the last known token, so that the next one can be chosen."""
        return self.end == self.state.num_tokens


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
            self._requests.pop(handle, None)  # A handle that is gone already is no error.
        for new in step.new_requests:
            if new.handle in self._requests:
                raise StepError(f"step {step.step}: handle {new.handle} is new but already known")
            self._requests[new.handle] = RequestState.from_new_request(new)
        self._append_blocks(step)
        if len(set(step.handles)) != len(step.handles):
            raise StepError(f"step {step.step}: a handle is scheduled twice")
        return [
            self._row(step.step, handle, num_tokens)
            for handle, num_tokens in zip(step.handles, step.num_scheduled_tokens, strict=True)
        ]

    def make_inputs(self, rows: Sequence[BatchRow], min_tokens: int = 1) -> StepInputs:
        """Arrays of the step that computes `rows`, of which there is at least one.

        Args:
            rows: What to compute, in any order.
            min_tokens: A step of fewer tokens is padded to this many.
        """
        ordered = sorted(rows, key=_batch_order)
        counts = np.array([row.num_tokens for row in ordered])
        query_start_loc = np.concatenate(([0], np.cumsum(counts)))
        starts = np.array([row.start for row in ordered])
        # Position of a token: its place in the step, shifted from its row's offset to its start.
        positions = np.arange(query_start_loc[-1]) + np.repeat(
            starts - query_start_loc[:-1], counts
        )
        block_tables = self._block_tables(ordered)
        row_of_token = np.repeat(np.arange(len(ordered)), counts)
        blocks = block_tables[row_of_token, positions // self._block_size]
        token_ids = [row.state.token_ids[row.start : row.end] for row in ordered]
        padding = (0, max(0, min_tokens - len(positions)))
        return StepInputs(
            rows=ordered,
            token_ids=np.pad(np.concatenate(token_ids, dtype=np.int64), padding),
            positions=np.pad(positions, padding),
            slot_mapping=np.pad(
                blocks * self._block_size + positions % self._block_size,
                padding,
                constant_values=PADDING_SLOT,
            ),
            block_tables=block_tables,
            query_start_loc=query_start_loc.tolist(),
            num_single_rows=int((counts == 1).sum()),
        )

    def advance(self, rows: Sequence[BatchRow]) -> None:
        """The KV of `rows` is written."""
        for row in rows:
            row.state.num_computed_tokens = row.end

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

    def _row(self, step: int, handle: int, num_tokens: int) -> BatchRow:
        state = self._get(step, handle)
        row = BatchRow(state, state.num_computed_tokens, num_tokens)
        if state.failure is not None:
            return row
        if num_tokens < 1 or row.end > state.num_tokens:
            raise StepError(
                f"step {step}: handle {handle} has {state.num_tokens} tokens, "
                f"{row.start} computed, {num_tokens} scheduled"
            )
        if row.end > min(state.num_blocks * self._block_size, self._max_model_len):
            raise StepError(
                f"step {step}: handle {handle} reaches {row.end} tokens with {state.num_blocks} "
                f"blocks of {self._block_size} and max_model_len {self._max_model_len}"
            )
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


def _batch_order(row: BatchRow) -> tuple[bool, int]:
    return (row.num_tokens > 1, -row.end)


def _with_room(array: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.int32]:
    """The array itself, or a longer copy of at least `size`."""
    if size <= len(array):
        return array
    grown = np.zeros(max(size, 2 * len(array)), dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def _seed(new: NewRequest) -> int:
    """The request's seed; without one (the gateway gives every request one) a hash of its id."""
    if new.sampling.seed is not None:
        return new.sampling.seed & _SEED_MASK
    digest = hashlib.blake2b(new.request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
