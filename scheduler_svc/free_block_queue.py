"""A KV block, and the queue of those that are free.

The queue owns the order in which free blocks are taken and nothing else. It does not know hashes,
groups or references: `block_pool` decides which block goes where in it.
"""

from __future__ import annotations

from collections.abc import Iterable


class KVCacheBlock:
    """One block; its links are valid only while it is in the free queue."""

    __slots__ = (
        "block_hash",
        "block_id",
        "cached_in_step",
        "group_id",
        "next_free",
        "prev_free",
        "ref_cnt",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.cached_in_step = 0
        """The step that made it findable; means nothing without a hash."""
        self.group_id = 0
        """The KV cache group whose layers it holds; means nothing without a hash."""
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        hashed = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, hash={hashed})"


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
