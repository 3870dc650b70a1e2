"""The tensors of a step's attention calls: made once a step, used by every layer.

Turns a plan's integers into index tensors and biases on the device of the block tables. Nothing
here reads a tensor back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker_svc.attention.xformers_operators import SPLIT_TOKENS, XformersOperators
from worker_svc.attention.xformers_plan import GatheredRows, PieceGroup, StepPlan
from worker_svc.device import put


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One call of the split-K operator."""

    tokens: torch.Tensor
    """[num_padded_pieces * query_len] int64: where the queries lie among the tokens of the step."""
    num_tokens: int
    """Of `tokens` those that are queries; padding pieces follow."""
    bias: Any


@dataclass(frozen=True, slots=True)
class GatheredCall:
    """One call over keys that are copied out of their pages."""

    tokens: torch.Tensor
    """[num_queries] int64: where the queries lie among the tokens of the step."""
    slots: torch.Tensor
    """[num_keys] int64: where the keys lie in the cache."""
    bias: Any


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls of one step for layers with the same sliding window."""

    paged: list[PagedCall]
    gathered: list[GatheredCall]


class CallFactory:
    """Makes the calls of one step.

    Args:
        operators: What the biases are made by.
        tables: [num_rows, max_num_blocks] block ids, any integer type.
        block_size: Tokens in a block.
        pad: Round the number of pieces, and the width of tables, up to powers of two, so that few
            shapes occur; the kernel is compiled anew for each.
    """

    def __init__(
        self, operators: XformersOperators, tables: torch.Tensor, block_size: int, *, pad: bool
    ) -> None:
        self._operators = operators
        self._tables = tables.to(torch.int32)
        self._block_size = block_size
        self._pad = pad

    def make(self, plan: StepPlan, window: int | None) -> StepCalls:
        return StepCalls(
            [self._paged(group, window) for group in plan.pieces],
            [self._gathered(rows, window) for rows in plan.gathered],
        )

    def _paged(self, group: PieceGroup, window: int | None) -> PagedCall:
        size, num_pieces = self._block_size, len(group.rows)
        # Where a piece sees no position below `start`, its table begins with the block of `start`.
        starts = [0 if window is None else max(0, end - window) for end in group.kv_ends]
        skipped = [start // size for start in starts]
        starts = [start % size for start in starts]
        kv_lens = [end - n * size for end, n in zip(group.kv_ends, skipped, strict=True)]
        padding = [0] * (power_of_two(num_pieces) - num_pieces if self._pad else 0)
        tables = self._shifted_tables(group.rows + padding, skipped + padding, max(kv_lens))
        if window is None:
            bias = self._operators.paged_bias(group.query_len, kv_lens + padding, tables, size)
        else:
            bias = self._operators.paged_window_bias(
                starts + padding, kv_lens + padding, tables, size
            )
        tokens = group.tokens()
        padded = tokens + padding * group.query_len
        return PagedCall(self._index(padded), len(tokens), bias)

    def _shifted_tables(
        self, rows: Sequence[int], skipped: Sequence[int], longest: int
    ) -> torch.Tensor:
        """[len(rows), width] int32: block tables of `rows` without their first blocks.

        What stands behind a row's last block is never read.
        """
        width = table_width(-(-longest // self._block_size), self._block_size, pad=self._pad)
        columns = self._index(skipped)[:, None] + torch.arange(width, device=self._tables.device)
        columns.clamp_(max=self._tables.shape[1] - 1)
        return self._tables[self._index(rows)[:, None], columns]

    def _gathered(self, rows: GatheredRows, window: int | None) -> GatheredCall:
        size, kv_lens = self._block_size, rows.kv_lens()
        spans = zip(rows.kv_begins, rows.kv_ends, strict=True)
        positions = torch.cat([torch.arange(begin, end) for begin, end in spans])
        row_of_key = torch.tensor(rows.rows).repeat_interleave(torch.tensor(kv_lens))
        positions, row_of_key = self._move(positions), self._move(row_of_key)
        blocks = self._tables[row_of_key, positions // size]
        bias = self._operators.gathered_bias(rows.query_lens, kv_lens, window, self._tables.device)
        slots = blocks.long() * size + positions % size
        return GatheredCall(self._index(rows.tokens()), slots, bias)

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return self._move(torch.tensor(values, dtype=torch.int64))

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        return put(tensor.numpy(), self._tables.device)


def table_width(num_blocks: int, block_size: int, *, pad: bool) -> int:
    """Columns of block tables for rows of up to `num_blocks`: whole splits, if more than one.

    Args:
        num_blocks: Of the longest row.
        block_size: Tokens in a block.
        pad: At least one split, and a power of two of them.
    """
    per_split = SPLIT_TOKENS // block_size
    if num_blocks <= per_split:
        return per_split if pad else num_blocks
    num_splits = -(-num_blocks // per_split)
    return per_split * (power_of_two(num_splits) if pad else num_splits)


def power_of_two(value: int) -> int:
    """The smallest that is not below `value`."""
    return 1 << (value - 1).bit_length()
