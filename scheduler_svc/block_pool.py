"""The pool of KV blocks: who is free, who is shared, and which block holds which tokens.

It owns reference counts, the eviction order and the maps from block hash to block. It does not know
requests, tokens or policy: `kv_cache_manager` decides what to take, share and give back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler_svc.block_lives import BlockLives
from scheduler_svc.free_block_queue import FreeBlockQueue, KVCacheBlock
from scheduler_svc.kv_event_sink import KvEventSink

NULL_BLOCK_ID = 0

_HashMap = dict[bytes, KVCacheBlock | dict[int, KVCacheBlock]]
"""A hash has one block mostly, else several by their ids."""


class BlockPool:
    """All blocks of a KV cache.

    Invariants: block 0 is null (never free, never cached, not counted); every other block is in the
    free queue exactly when its `ref_cnt` is 0; a block with a hash is in its group's hash map under
    it. Several blocks may have the same hash, because block tables only ever grow at their end.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        num_groups: int = 1,
        event_group_id: int = 0,
        enable_caching: bool = True,
        events: KvEventSink | None = None,
        lives: BlockLives | None = None,
    ) -> None:
        """Make a pool of free blocks.

        Args:
            num_blocks: The null block included.
            num_groups: KV cache groups that blocks are taken for; any block serves any group.
            event_group_id: The group whose hashes `events` is told of.
            enable_caching: Whether blocks can be made findable.
            events: Whom to tell.
            lives: Who follows blocks, if anybody does.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}: the null block alone takes one")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.step = 0
        """The step that is being planned; its owner counts it up."""
        self._enable_caching = enable_caching
        self._events = events
        self._lives = lives
        self._free_queue = FreeBlockQueue(self.blocks[1:])
        self._event_group_id = event_group_id
        # By group: the same tokens have a block in each.
        self._cached: list[_HashMap] = [{} for _ in range(num_groups)]

    @property
    def num_free_blocks(self) -> int:
        return self._free_queue.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of usable blocks that requests hold, 0 to 1."""
        num_usable = len(self.blocks) - 1
        return (num_usable - self.num_free_blocks) / num_usable if num_usable else 0.0

    def get_cached_block(self, block_hash: bytes, group_id: int = 0) -> KVCacheBlock | None:
        """A block that holds these tokens for a group, without taking it."""
        entry = self._cached[group_id].get(block_hash)
        if isinstance(entry, dict):
            return next(iter(entry.values()))
        return entry

    def cached_hashes(self) -> list[bytes]:
        """What `events` was told to be findable and is, in no order."""
        return list(self._cached[self._event_group_id])

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the free queue; what they cached is forgotten.

        Raises:
            ValueError: Fewer are free; callers check first.
        """
        blocks = self._free_queue.popleft_n(num_blocks)
        if self._lives is not None:
            self._lives.taken(blocks)
        for block in blocks:
            if block.block_hash is not None:
                self._evict(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Share cached blocks: they can't be evicted until freed again."""
        if self._lives is not None:
            self._lives.hit(blocks)
        for block in blocks:
            if block.ref_cnt == 0:
                self._free_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Give up one reference to each block, in eviction order.

        Blocks that nobody holds any more go to the tail if a later request may hit them, else to
        the head, so that they are reused before anything that is cached.
        """
        hashed: list[KVCacheBlock] = []
        unhashed: list[KVCacheBlock] = []
        for block in blocks:
            if block.ref_cnt < 1:
                raise RuntimeError(f"{block} is freed more often than it was taken")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (unhashed if block.block_hash is None else hashed).append(block)
        self._free_queue.append_n(hashed)
        self._free_queue.prepend_n(unhashed)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[bytes],
        start: int,
        end: int,
        group_id: int = 0,
    ) -> list[int]:
        """Make `blocks[start:end]` of a group, which are full, findable under their hashes.

        Returns:
            Indices of those whose hash was not findable before.
        """
        first_of_hash: list[int] = []
        if not self._enable_caching:
            return first_of_hash
        cached = self._cached[group_id]
        for index in range(start, end):
            block = blocks[index]
            if block.block_hash is not None:
                raise RuntimeError(f"{block} is already cached")
            block.block_hash = block_hashes[index]
            block.cached_in_step = self.step
            block.group_id = group_id
            if _insert(cached, block_hashes[index], block):
                first_of_hash.append(index)
        return first_of_hash

    def uncache_since(self, step: int, blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
        """Make blocks unfindable that were made findable in this step or later.

        Their references stay.

        Returns:
            Those blocks.
        """
        uncached = [
            block
            for block in blocks
            if block.block_hash is not None and block.cached_in_step >= step
        ]
        for block in uncached:
            self._evict(block)
            if block.ref_cnt == 0:
                self._free_queue.remove(block)
                self._free_queue.prepend_n((block,))
        return uncached

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block.

        Returns:
            False, and nothing is done, while a request holds a block.
        """
        if self.num_free_blocks != len(self.blocks) - 1:
            return False
        for cached in self._cached:
            for entry in cached.values():
                for block in entry.values() if isinstance(entry, dict) else (entry,):
                    block.block_hash = None
            cached.clear()
        if self._lives is not None:
            self._lives.clear()
        if self._events is not None:
            self._events.all_cleared()
        return True

    def check_integrity(self) -> None:
        """Verify the invariants of the class; walks the whole pool.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        free_ids = self._free_queue.block_ids()
        zero_ref_ids = {b.block_id for b in self.blocks[1:] if b.ref_cnt == 0}
        _require(len(free_ids) == self.num_free_blocks, "the free queue's count is wrong")
        _require(len(free_ids) == len(set(free_ids)), "a block is twice in the free queue")
        _require(set(free_ids) == zero_ref_ids, "free blocks are not those without references")
        _require(self.null_block.block_hash is None, "the null block is cached")
        mapped = [
            (group_id, block_hash, block)
            for group_id, cached in enumerate(self._cached)
            for block_hash, entry in cached.items()
            for block in (entry.values() if isinstance(entry, dict) else (entry,))
        ]
        _require(all(h == b.block_hash for _, h, b in mapped), "a block is under another's hash")
        _require(all(g == b.group_id for g, _, b in mapped), "a block is in another group's map")
        hashed_ids = sorted(b.block_id for b in self.blocks if b.block_hash is not None)
        mapped_ids = sorted(block.block_id for _, _, block in mapped)
        _require(hashed_ids == mapped_ids, "hashed blocks are not those in the map")

    def _evict(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        if block_hash is None:
            raise RuntimeError(f"{block} is not cached")
        block.block_hash = None
        cached = self._cached[block.group_id]
        entry = cached[block_hash]
        if not isinstance(entry, dict):
            del cached[block_hash]
            if self._events is not None and block.group_id == self._event_group_id:
                self._events.block_removed(block_hash)
            return
        del entry[block.block_id]
        if len(entry) == 1:
            cached[block_hash] = next(iter(entry.values()))


def _insert(cached: _HashMap, block_hash: bytes, block: KVCacheBlock) -> bool:
    """Make a block findable; whether it is the first with this hash."""
    entry = cached.get(block_hash)
    if entry is None:
        cached[block_hash] = block
        return True
    if isinstance(entry, dict):
        entry[block.block_id] = block
    else:
        cached[block_hash] = {entry.block_id: entry, block.block_id: block}
    return False


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)
