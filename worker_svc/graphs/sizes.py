"""Which sizes of steps are recorded, and which of them a step takes.

Pure arithmetic. A step of n rows takes the smallest recorded number of rows not below n, and
the narrowest block tables that hold its longest row: every recorded split of keys that a step does
not need costs time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from worker_svc.attention.xformers_calls import table_width
from worker_svc.attention.xformers_operators import SPLIT_TOKENS

MAX_ROWS = 512
"""Larger steps have so much to compute that launching it costs little."""
_WIDTH_STEP = 4


@dataclass(frozen=True, slots=True)
class GraphSize:
    """What one graph is recorded for."""

    num_rows: int
    width: int
    """Columns of the block tables."""


def row_counts(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of rows that are recorded, rising: vLLM V1's, and the largest itself."""
    limit = min(max_num_seqs, MAX_ROWS)
    counts = [1, 2, 4, *range(8, 257, 8), *range(272, MAX_ROWS + 1, 16)]
    return (*(count for count in counts if count < limit), limit)


def table_widths(max_model_len: int, block_size: int) -> tuple[int, ...]:
    """Widths of block tables that are recorded, rising: each four times the one before."""
    widest = table_width(-(-max_model_len // block_size), block_size, pad=True)
    width = SPLIT_TOKENS // block_size
    widths = []
    while width < widest:
        widths.append(width)
        width *= _WIDTH_STEP
    return (*widths, widest)


class GraphSizes:
    """The sizes of one model."""

    def __init__(self, counts: Sequence[int], widths: Sequence[int]) -> None:
        self._counts = counts
        self._widths = widths

    @classmethod
    def of(cls, max_num_seqs: int, max_model_len: int, block_size: int) -> GraphSizes:
        return cls(row_counts(max_num_seqs), table_widths(max_model_len, block_size))

    @property
    def largest(self) -> GraphSize:
        return GraphSize(self._counts[-1], self._widths[-1])

    def __len__(self) -> int:
        return len(self._counts) * len(self._widths)

    def falling(self) -> list[GraphSize]:
        """All of them, the largest first: the others then fit into its memory."""
        return [
            GraphSize(count, width)
            for width in reversed(self._widths)
            for count in reversed(self._counts)
        ]

    def fitting(self, num_rows: int, num_blocks: int) -> GraphSize | None:
        """The smallest that takes a step of so many rows and blocks of its longest; None: none."""
        row, column = bisect_left(self._counts, num_rows), bisect_left(self._widths, num_blocks)
        if row == len(self._counts) or column == len(self._widths):
            return None
        return GraphSize(self._counts[row], self._widths[column])
