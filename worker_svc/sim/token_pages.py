"""Simulated KV memory: what each slot stores, written by slot mapping, read through block tables.

Owns the pages. Knows nothing of requests and of whose block is whose: it is told where to write and
what to read, so that a wrong table, a stale prefix hit or a block freed too early changes what is
read. Slots that were not written, or whose page was begun anew, read as poison.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, islice

import numpy as np
import numpy.typing as npt

from worker_svc.sim.hashing import CHAIN_START, MASK, next_chain, powers

Blocks = npt.NDArray[np.int64]

POISON = 0xDEADBEEFDEADBEEF
_INITIAL_POWERS = 64


class TokenPages:
    """`num_blocks` pages of `block_size` slots; block 0 is the null block, which stays poison.

    For each slot: the chain value of its token, and the sum over its page up to it. Invariant: in a
    page, sums that are not poison lie before those that are.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        num_slots = num_blocks * block_size
        self._chains = array("Q", [POISON]) * num_slots
        self._sums = array("Q", [POISON]) * num_slots
        # The last sum of each page, in the same memory, for gathers: [num_blocks].
        self._page_sums = np.frombuffer(self._sums, np.uint64)[block_size - 1 :: block_size]
        self._page_poison = array("Q", [POISON]) * block_size
        self._slot_powers = list(islice(powers(), block_size))
        self._block_powers = self._make_block_powers(_INITIAL_POWERS)

    def slot_mapping(self, block_table: Blocks, start: int, num_tokens: int) -> list[int]:
        """Slots of positions [start, start + num_tokens) of a sequence."""
        size = self.block_size
        if num_tokens == 1:
            return [int(block_table[start // size]) * size + start % size]
        positions = np.arange(start, start + num_tokens)
        slots: list[int] = (block_table[positions // size] * size + positions % size).tolist()
        return slots

    def write(self, block_table: Blocks, start: int, token_ids: Sequence[int]) -> None:
        """Store tokens at positions `start` and up; each depends on the one stored before it.

        Writing into the null block has no effect.
        """
        chain = self.chain_before(block_table, start)
        self.store(block_table, start, list(accumulate(token_ids, next_chain, initial=chain))[1:])

    def store(self, block_table: Blocks, start: int, new_chains: Sequence[int]) -> None:
        """Store chains at positions `start` and up; those in the null block are lost."""
        size, chains, sums = self.block_size, self._chains, self._sums
        slots = self.slot_mapping(block_table, start, len(new_chains))
        for slot, chain in zip(slots, new_chains, strict=True):
            if slot < size:
                continue
            offset = slot % size
            before = sums[slot - 1] if offset else 0
            chains[slot] = chain
            sums[slot] = (before + chain * self._slot_powers[offset]) & MASK
            # What lies behind in the page belonged to whoever had the block before.
            if offset + 1 < size and sums[slot + 1] != POISON:
                sums[slot + 1 : slot + size - offset] = self._page_poison[offset + 1 :]

    def read(self, block_table: Blocks, num_tokens: int, window: int = 0) -> int:
        """The context value of a sequence's first `num_tokens` tokens, read from its blocks.

        Args:
            block_table: Of the sequence.
            num_tokens: From its beginning.
            window: Only the last so many of them, so that blocks before are not read; 0: all.
        """
        num_full, num_rest = divmod(num_tokens, self.block_size)
        first, num_left = divmod(max(0, num_tokens - window) if window else 0, self.block_size)
        if num_full >= len(self._block_powers):
            self._block_powers = self._make_block_powers(2 * num_full + 2)
        sums = self._page_sums.take(block_table[first:num_full])
        total = int(sums.dot(self._block_powers[first:num_full]))
        if num_rest:
            last = self._sums[int(block_table[num_full]) * self.block_size + num_rest - 1]
            total += last * int(self._block_powers[num_full])
        if num_left:
            # The window begins within a block; the sum up to there is not in it.
            before = self._sums[int(block_table[first]) * self.block_size + num_left - 1]
            total -= before * int(self._block_powers[first])
        return total & MASK

    def chain_before(self, block_table: Blocks, position: int) -> int:
        """The chain value that the token at `position` follows, read back through the table."""
        if position == 0:
            return CHAIN_START
        block_id = int(block_table[(position - 1) // self.block_size])
        return self._chains[block_id * self.block_size + (position - 1) % self.block_size]

    def _make_block_powers(self, count: int) -> npt.NDArray[np.uint64]:
        return np.fromiter(islice(powers(self.block_size), count), np.uint64, count)
