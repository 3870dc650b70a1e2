"""The simulated KV of a model with several groups of layers: one token, a slot in every group.

Owns how groups come together: what a token's chain is made of and what the logits see. Knows no
requests; `token_pages` stores and reads. With one group that sees all tokens, chain and context are
those of `hashing`, nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from worker_svc.sim.hashing import CHAIN_START, GROUP_FACTOR, MASK, POWER, next_chain
from worker_svc.sim.token_pages import Blocks, TokenPages

_MODULUS = MASK + 1


class GroupPages:
    """Pages that all groups take their blocks from.

    A token's chain follows from the chain before it and from what the windows of the sliding groups
    see before it, each read through its own table: a block that lacks in a window changes every
    token that should see it, whether anything is sampled there or not.
    """

    def __init__(self, sliding_windows: Sequence[int], num_blocks: int, block_size: int) -> None:
        """Make empty pages.

        Args:
            sliding_windows: By group; 0: it sees all tokens.
            num_blocks: Of all groups together, the null block included.
            block_size: In tokens.
        """
        self._pages = TokenPages(num_blocks, block_size)
        self._windows = list(sliding_windows)
        self._factors = [pow(GROUP_FACTOR, i, _MODULUS) for i in range(len(self._windows))]
        self._sliding = [i for i, window in enumerate(self._windows) if window]
        # Where the chain before a token is read: a group that sees it, if there is one.
        reach = [window or MASK for window in self._windows]
        self._chain_group = reach.index(max(reach)) if max(reach) > 1 else None

    def write(self, block_tables: Sequence[Blocks], start: int, token_ids: Sequence[int]) -> None:
        """Store tokens at positions `start` and up in a slot of every group."""
        chains = self._chains(block_tables, start, token_ids)
        for block_table in block_tables:
            self._pages.store(block_table, start, chains)

    def read(self, block_tables: Sequence[Blocks], num_tokens: int) -> int:
        """What the logits after `num_tokens` tokens come from, out of every group's window."""
        total = 0
        for block_table, window, factor in zip(
            block_tables, self._windows, self._factors, strict=True
        ):
            total += self._pages.read(block_table, num_tokens, window) * factor
        return total & MASK

    def _chains(
        self, block_tables: Sequence[Blocks], start: int, token_ids: Sequence[int]
    ) -> list[int]:
        chain = CHAIN_START
        if self._chain_group is not None:
            chain = self._pages.chain_before(block_tables[self._chain_group], start)
        if not self._sliding:
            return list(accumulate(token_ids, next_chain, initial=chain))[1:]
        chains: list[int] = []
        seen = [self._open_window(i, block_tables[i], start) for i in self._sliding]
        for token_id in token_ids:
            before = chain if self._chain_group is not None else CHAIN_START
            for window in seen:
                before += window.value
            chain = next_chain(before & MASK, token_id)
            chains.append(chain)
            for window in seen:
                window.append(chain)
        return chains

    def _open_window(self, group_id: int, block_table: Blocks, start: int) -> _Window:
        return _Window(
            self._pages, block_table, start, self._windows[group_id] - 1, self._factors[group_id]
        )


class _Window:
    """The sum over the last `size` positions of a growing sequence, as a group sees them."""

    def __init__(
        self, pages: TokenPages, block_table: Blocks, start: int, size: int, factor: int
    ) -> None:
        self._pages = pages
        self._block_table = block_table
        self._start = start
        self._size = size
        self._factor = factor
        self._sum = pages.read(block_table, start, size) if size else 0
        self._written: list[int] = []

    @property
    def value(self) -> int:
        return self._sum * self._factor

    def append(self, chain: int) -> None:
        """Move on by one position, whose chain is new."""
        position = self._start + len(self._written)
        self._written.append(chain)
        self._sum += chain * pow(POWER, position, _MODULUS)
        left = position - self._size
        if left >= self._start:
            self._sum -= self._written[left - self._start] * pow(POWER, left, _MODULUS)
        elif left >= 0:
            chain_left = self._pages.chain_before(self._block_table, left + 1)
            self._sum -= chain_left * pow(POWER, left, _MODULUS)
        self._sum &= MASK
