"""What must not change any token, as flags of a stack; all combinations, and few that cover them.

Owns no requests and starts nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import combinations, product
from typing import Literal

Chunk = Literal[16, 64, 0]
_CHUNKS: tuple[Chunk, ...] = (16, 64, 0)
LARGE_POOL = 2048
NUM_SEQS = 48
_NUM_ORDERS = 100


@dataclass(frozen=True)
class Switches:
    """One setting of everything that decides how a request is computed, and not what comes out."""

    overlap: bool
    caching: bool
    chunk: Chunk
    """Most prompt tokens of a request in one step; 0: unlimited."""
    tiny_pool: bool
    """Too few blocks for all requests: some are preempted."""
    speculation: bool

    def flags(self, tiny_pool: int) -> list[str]:
        """Flags of `pagewire serve`; `tiny_pool` is the number of blocks that is too few."""
        method = "ngram" if self.speculation else "none"
        blocks = tiny_pool if self.tiny_pool else LARGE_POOL
        return [
            f"--{'' if self.overlap else 'no-'}async-scheduling",
            f"--{'' if self.caching else 'no-'}enable-prefix-caching",
            *self._chunk_flags(),
            f"--num-gpu-blocks-override={blocks}",
            f"--speculative-method={method}",
        ]

    def _chunk_flags(self) -> list[str]:
        """16 by the step's budget, which decoding requests and drafts share; 64 by request."""
        if self.chunk == 16:
            return ["--max-num-batched-tokens=16", "--max-num-seqs=16"]
        threshold = f"--long-prefill-token-threshold={self.chunk}"
        return [threshold, f"--max-num-seqs={NUM_SEQS}", "--max-num-batched-tokens=8192"]

    def __str__(self) -> str:
        on = [field.name for field in fields(self) if getattr(self, field.name) is True]
        return "-".join([f"chunk{self.chunk or 'less'}", *on])


REFERENCE = Switches(overlap=False, caching=False, chunk=0, tiny_pool=False, speculation=False)
"""The plainest way to compute a request."""

ALL = tuple(
    Switches(overlap, caching, chunk, tiny, speculation)
    for overlap, caching, tiny, speculation in product((False, True), repeat=4)
    for chunk in _CHUNKS
)


def covering(strength: int) -> list[Switches]:
    """Few members of `ALL` in which every `strength` switches have every combination of settings.

    Greedy from many orders; the shortest list wins.
    """
    orders = (random.Random(seed).sample(ALL, len(ALL)) for seed in range(_NUM_ORDERS))
    return min((_cover(strength, order) for order in orders), key=len)


def _cover(strength: int, order: Sequence[Switches]) -> list[Switches]:
    """The next one is always the first with most settings that none before it has."""
    wanted = set[object]().union(*(settings(each, strength) for each in order))
    chosen: list[Switches] = []
    while wanted:
        best = max(order, key=lambda each: len(wanted & settings(each, strength)))
        wanted -= settings(best, strength)
        chosen.append(best)
    return chosen


@cache
def settings(switches: Switches, strength: int) -> frozenset[tuple[tuple[int, object], ...]]:
    """All groups of `strength` switches, each with its setting."""
    return frozenset(combinations(enumerate(astuple(switches)), strength))
