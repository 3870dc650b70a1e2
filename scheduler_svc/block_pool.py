"""The pool of KV blocks: who is free, who is shared, and which block holds which tokens.

It owns reference counts, the eviction order and the map from block hash to block. It does not know
requests, tokens or policy: `kv_cache_manager` decides what to take, share and give back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

NULL_BLOCK_ID = 0


class KVCacheBlock:
    """One block; its links are valid only while it is in the free queue."""

    __slots__ = ("block_hash", "block_id", "cached_in_step", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.cached_in_step = 0
        """The step that made it findable; means nothing without a hash."""
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        hashed = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, hash={hashed})"


class KvEventSink(Protocol):
    """Whoever wants to know which hashes are findable; a hash counts, not its blocks."""

    def blocks_stored(
        self, parent_hash: bytes | None, hashes: Sequence[bytes], token_ids: Sequence[int]
    ) -> None:
        """Hashes in a row became findable; `token_ids` are those of all their blocks."""

    def block_removed(self, block_hash: bytes) -> None:
        """A hash is not findable any more."""

    def all_cleared(self) -> None:
        """No hash is."""

    def flush(self) -> None:
        """What came since the last time belongs together."""


class FreeBlockQueue:
    """Doubly linked list of free blocks in eviction order: the head is taken first.

    Linked through the blocks themselves, so that a hit can leave the middle in O(1).
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        # Two fake ends spare every operation the cases of an empty list.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-2)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self.num_free_blocks = 0
        self.append_n(blocks)

    def popleft_n(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head.

        Raises:
            ValueError: Fewer are free.
        """
        if num_blocks > self.num_free_blocks:
            raise ValueError(f"cannot take {num_blocks} blocks, {self.num_free_blocks} are free")
        taken = []
        block = self._head.next_free
        for _ in range(num_blocks):
            if block is None:
                raise RuntimeError("the free queue's links and count disagree")
            taken.append(block)
            following = block.next_free
            block.prev_free = block.next_free = None
            block = following
        if block is not None:
            self._head.next_free, block.prev_free = block, self._head
        self.num_free_blocks -= num_blocks
        return taken

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks at the tail, in order: they are evicted last."""
        last = self._tail.prev_free
        for block in blocks:
            block.prev_free = last
            if last is not None:
                last.next_free = block
            last = block
            self.num_free_blocks += 1
        if last is not None:
            last.next_free, self._tail.prev_free = self._tail, last

    def prepend_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put blocks at the head, in order: the first of them is taken next."""
        following, last = self._head.next_free, self._head
        for block in blocks:
            last.next_free, block.prev_free = block, last
            last = block
            self.num_free_blocks += 1
        last.next_free = following
        if following is not None:
            following.prev_free = last

    def remove(self, block: KVCacheBlock) -> None:
        """Take one block out of the middle.

        Raises:
            RuntimeError: The block is not in the queue.
        """
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise RuntimeError(f"{block} is not in the free queue")
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def block_ids(self) -> list[int]:
        """All free ids in eviction order; walks the whole queue (for tests and checks)."""
        ids = []
        block = self._head.next_free
        while block is not None and block is not self._tail:
            ids.append(block.block_id)
            block = block.next_free
        return ids


class BlockPool:
    """All blocks of a KV cache.

    Invariants: block 0 is null (never free, never cached, not counted); every other block is in the
    free queue exactly when its `ref_cnt` is 0; a block with a hash is in the hash map under it.
    Several blocks may have the same hash, because block tables only ever grow.
    """

    def __init__(
        self, num_blocks: int, *, enable_caching: bool = True, events: KvEventSink | None = None
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks}: the null block alone takes one")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.step = 0
        """The step that is being planned; its owner counts it up."""
        self._enable_caching = enable_caching
        self._events = events
        self._free_queue = FreeBlockQueue(self.blocks[1:])
        self._cached: dict[bytes, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    @property
    def num_free_blocks(self) -> int:
        return self._free_queue.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of usable blocks that requests hold, 0 to 1."""
        num_usable = len(self.blocks) - 1
        return (num_usable - self.num_free_blocks) / num_usable if num_usable else 0.0

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """A block that holds these tokens, without taking it."""
        entry = self._cached.get(block_hash)
        if isinstance(entry, dict):
            return next(iter(entry.values()))
        return entry

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the free queue; what they cached is forgotten.

        Raises:
            ValueError: Fewer are free; callers check first.
        """
        blocks = self._free_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.block_hash is not None:
                self._evict(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Share cached blocks: they can't be evicted until freed again."""
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
        self, blocks: Sequence[KVCacheBlock], block_hashes: Sequence[bytes], start: int, end: int
    ) -> list[int]:
        """Make `blocks[start:end]`, which are full, findable under their hashes.

        Returns:
            Indices of those whose hash was not findable before.
        """
        first_of_hash: list[int] = []
        if not self._enable_caching:
            return first_of_hash
        for index in range(start, end):
            block = blocks[index]
            if block.block_hash is not None:
                raise RuntimeError(f"{block} is already cached")
            block.block_hash = block_hashes[index]
            block.cached_in_step = self.step
            if self._insert(block_hashes[index], block):
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
        for entry in self._cached.values():
            for block in entry.values() if isinstance(entry, dict) else (entry,):
                block.block_hash = None
        self._cached.clear()
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
            (block_hash, block)
            for block_hash, entry in self._cached.items()
            for block in (entry.values() if isinstance(entry, dict) else (entry,))
        ]
        _require(all(h == b.block_hash for h, b in mapped), "a block is under another's hash")
        hashed_ids = sorted(b.block_id for b in self.blocks if b.block_hash is not None)
        mapped_ids = sorted(block.block_id for _, block in mapped)
        _require(hashed_ids == mapped_ids, "hashed blocks are not those in the map")

    def _insert(self, block_hash: bytes, block: KVCacheBlock) -> bool:
        entry = self._cached.get(block_hash)
        if entry is None:
            self._cached[block_hash] = block
            return True
        if isinstance(entry, dict):
            entry[block.block_id] = block
        else:
            self._cached[block_hash] = {entry.block_id: entry, block.block_id: block}
        return False

    def _evict(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        if block_hash is None:
            raise RuntimeError(f"{block} is not cached")
        block.block_hash = None
        entry = self._cached[block_hash]
        if not isinstance(entry, dict):
            del self._cached[block_hash]
            if self._events is not None:
                self._events.block_removed(block_hash)
            return
        del entry[block.block_id]
        if len(entry) == 1:
            self._cached[block_hash] = next(iter(entry.values()))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)
