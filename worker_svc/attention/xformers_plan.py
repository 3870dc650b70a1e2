"""Which tokens of a step go into which attention call: plain integers, no tensors.

The split-K operator takes rows of the same number of queries, at most `MAX_UNIFORM_QUERIES`. So a
row is cut in pieces, which are grouped by length; a piece sees the keys up to its own last query,
as a row of its own would. Long rows are cut too, or kept aside for a call over gathered pages.
Knows nothing of xformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAX_UNIFORM_QUERIES = 16
"""The split-K operator's limit for causal biases."""
MAX_PIECES = 512
"""Of one call: bounds its block tables."""
MAX_GATHERED_TOKENS = 65_536
"""Keys of one gathered call, unless a single row has more: bounds the copies of its pages."""


@dataclass(slots=True)
class PieceGroup:
    """Pieces of `query_len` queries each; the columns are parallel."""

    query_len: int
    rows: list[int] = field(default_factory=list)
    """Row of the step, for its block table."""
    first_tokens: list[int] = field(default_factory=list)
    """Where a piece's queries begin among the tokens of the step."""
    kv_ends: list[int] = field(default_factory=list)
    """Positions that a piece's last query sees: those below."""

    def add(self, row: int, first_token: int, kv_end: int) -> None:
        self.rows.append(row)
        self.first_tokens.append(first_token)
        self.kv_ends.append(kv_end)

    def tokens(self) -> list[int]:
        """Tokens of all pieces, one piece after another."""
        return [first + i for first in self.first_tokens for i in range(self.query_len)]

    def batches(self) -> Iterator[PieceGroup]:
        """This group in parts of at most `MAX_PIECES` pieces."""
        for start in range(0, len(self.rows), MAX_PIECES):
            part = slice(start, start + MAX_PIECES)
            yield PieceGroup(
                self.query_len, self.rows[part], self.first_tokens[part], self.kv_ends[part]
            )


@dataclass(slots=True)
class GatheredRows:
    """Rows for one call over gathered pages; the columns are parallel."""

    rows: list[int] = field(default_factory=list)
    first_tokens: list[int] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    kv_begins: list[int] = field(default_factory=list)
    """First position that is gathered: a block's first, at or before the first that is seen."""
    kv_ends: list[int] = field(default_factory=list)

    def tokens(self) -> list[int]:
        spans = zip(self.first_tokens, self.query_lens, strict=True)
        return [first + i for first, length in spans for i in range(length)]

    def kv_lens(self) -> list[int]:
        return [end - begin for begin, end in zip(self.kv_begins, self.kv_ends, strict=True)]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The calls of one step for layers with the same sliding window."""

    pieces: list[PieceGroup]
    gathered: list[GatheredRows]


def plan_step(
    seq_lens: Sequence[int],
    query_start_loc: Sequence[int],
    *,
    window: int | None,
    block_size: int,
    gather: bool,
) -> StepPlan:
    """Divides a step's rows.

    Args:
        seq_lens: For each row, positions in the cache once the step is written.
        query_start_loc: num_rows + 1 offsets into the tokens of the step.
        window: Positions that a query sees, itself included; None: all. Each query of a windowed
            layer becomes a piece, since the paged bias has one first position for all queries.
        block_size: Tokens in a block.
        gather: Rows of more than `MAX_UNIFORM_QUERIES` queries are gathered, not cut.
    """
    longest = MAX_UNIFORM_QUERIES if window is None else 1
    groups: dict[int, PieceGroup] = {}
    gathered: list[GatheredRows] = []
    for row, kv_end in enumerate(seq_lens):
        first, end = query_start_loc[row], query_start_loc[row + 1]
        if gather and end - first > MAX_UNIFORM_QUERIES:
            begin = _block_begin(kv_end - (end - first), window, block_size)
            _add_gathered(gathered, row, first, end - first, begin, kv_end)
            continue
        for token in range(first, end, longest):
            length = min(longest, end - token)
            group = groups.setdefault(length, PieceGroup(length))
            group.add(row, token, kv_end - (end - token - length))
    pieces = [batch for group in groups.values() for batch in group.batches()]
    return StepPlan(pieces, gathered)


def _block_begin(position: int, window: int | None, block_size: int) -> int:
    """First position of the block that holds the first one which `position` sees."""
    seen = 0 if window is None else max(0, position - window + 1)
    return seen // block_size * block_size


def _add_gathered(
    calls: list[GatheredRows], row: int, first: int, length: int, begin: int, end: int
) -> None:
    """To the last call if it has room, else to a new one."""
    if not calls or sum(calls[-1].kv_lens()) + end - begin > MAX_GATHERED_TOKENS:
        calls.append(GatheredRows())
    call = calls[-1]
    call.rows.append(row)
    call.first_tokens.append(first)
    call.query_lens.append(length)
    call.kv_begins.append(begin)
    call.kv_ends.append(end)
