"""How long KV blocks live, lie unused and wait between uses: of a sample, for metrics.

The block pool tells it of blocks that are taken and of those that are hit. It knows no clock: the
time of a step is set when its planning begins. Memory is bounded by the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pagewire.kit.histogram import Histogram
from pagewire.metric_buckets import KV_BLOCK_S
from scheduler_svc.free_block_queue import KVCacheBlock


@dataclass(slots=True)
class _Life:
    born_s: float
    used_s: float


class BlockLives:
    """Every n-th block that is taken is followed until it is taken again."""

    def __init__(self, sample: float) -> None:
        """Follow none yet.

        Args:
            sample: Share of blocks, above 0 and up to 1.
        """
        self.now_s = 0.0
        """Time of the step that is being planned."""
        self.lifetime = Histogram(KV_BLOCK_S)
        self.idle_before_evict = Histogram(KV_BLOCK_S)
        self.reuse_gap = Histogram(KV_BLOCK_S)
        self._every = max(1, round(1 / sample))
        self._num_taken = 0
        self._followed: dict[int, _Life] = {}

    def taken(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that free blocks are taken for new tokens; those with a hash lose what they cached.

        Comes before the hash goes.
        """
        for block in blocks:
            life = self._followed.pop(block.block_id, None)
            if life is not None and block.block_hash is not None:
                self.lifetime.observe(self.now_s - life.born_s)
                self.idle_before_evict.observe(self.now_s - life.used_s)
            self._num_taken += 1
            if self._num_taken % self._every == 0:
                self._followed[block.block_id] = _Life(self.now_s, self.now_s)

    def hit(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Note that another request uses what the blocks cache."""
        for block in blocks:
            life = self._followed.get(block.block_id)
            if life is not None:
                self.reuse_gap.observe(self.now_s - life.used_s)
                life.used_s = self.now_s

    def clear(self) -> None:
        """Forget those that are followed: the cache was emptied, which is no eviction."""
        self._followed.clear()
