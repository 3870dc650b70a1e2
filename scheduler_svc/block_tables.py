"""The block tables of one request, one a KV cache group, and what holds for them all.

Plain state: which block is where, how far each window has moved on, how many blocks are findable.
It takes and gives no block and decides nothing; `kv_cache_manager` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from scheduler_svc.block_pool import NULL_BLOCK_ID, BlockPool
from scheduler_svc.free_block_queue import KVCacheBlock
from scheduler_svc.kv_cache_groups import KvCacheGroupSpec
from scheduler_svc.prefix_hit import PrefixHit


@dataclass(slots=True)
class BlockTables:
    """Invariants: `blocks` are of one length; exactly the `num_skipped` first of each are null."""

    blocks: list[list[KVCacheBlock]]
    """By group."""
    num_skipped: list[int]
    """By group: leading blocks that its window has left."""
    num_cached_blocks: int
    """Leading places that were full and made findable while they had a block."""

    def append(self, new_blocks: Sequence[KVCacheBlock], num_each: int) -> None:
        """Add new blocks: `num_each` for the first group, then for the next."""
        for group_id, blocks in enumerate(self.blocks):
            blocks += new_blocks[group_id * num_each : (group_id + 1) * num_each]

    def skip(self, group_id: int, num_skipped: int, null_block: KVCacheBlock) -> list[KVCacheBlock]:
        """Take the blocks up to `num_skipped` out of a group's table, and return them in order."""
        blocks, start = self.blocks[group_id], self.num_skipped[group_id]
        left = blocks[start:num_skipped]
        blocks[start:num_skipped] = [null_block] * len(left)
        self.num_skipped[group_id] = num_skipped
        return left

    def block_ids(self) -> list[int]:
        """Ids of all tables, one after another."""
        return [block.block_id for blocks in self.blocks for block in blocks]

    def held_blocks(self) -> list[KVCacheBlock]:
        """All blocks that are not null."""
        if len(self.blocks) == 1:
            return self.blocks[0][self.num_skipped[0] :]
        held = zip(self.blocks, self.num_skipped, strict=True)
        return [block for blocks, start in held for block in blocks[start:]]

    def in_eviction_order(self) -> Iterable[KVCacheBlock]:
        """All blocks that are not null, the last of every group first.

        Across groups, because a beginning is a hit only where all groups still have it.
        """
        if len(self.blocks) == 1:
            return reversed(self.blocks[0][self.num_skipped[0] :])
        in_order = chain.from_iterable(zip(*map(reversed, self.blocks), strict=True))
        return [block for block in in_order if block.block_id != NULL_BLOCK_ID]


def tables_of_hit(
    hit: PrefixHit, groups: Sequence[KvCacheGroupSpec], block_size: int
) -> BlockTables:
    """Return the tables of a request that begins with a hit; nothing is taken yet."""
    blocks = [list(of_group) for of_group in hit.blocks] or [[] for _ in groups]
    num_skipped = [group.num_skipped_blocks(hit.num_tokens, block_size) for group in groups]
    return BlockTables(blocks, num_skipped, hit.num_tokens // block_size)


def check_tables(
    all_tables: Iterable[BlockTables],
    pool: BlockPool,
    groups: Sequence[KvCacheGroupSpec],
    block_size: int,
) -> None:
    """Verify that tables, groups and reference counts agree; walks everything.

    Raises:
        RuntimeError: Names the first that does not hold.
    """
    num_references = Counter[int]()
    group_of: dict[int, int] = {}
    for tables in all_tables:
        _check_shape(tables, pool.null_block, groups, block_size)
        for group_id, start in enumerate(tables.num_skipped):
            for block in tables.blocks[group_id][start:]:
                num_references[block.block_id] += 1
                if group_of.setdefault(block.block_id, group_id) != group_id:
                    raise RuntimeError(f"{block} is in tables of two groups")
    for block in pool.blocks[1:]:
        if block.ref_cnt != num_references[block.block_id]:
            raise RuntimeError(f"{block} is in {num_references[block.block_id]} tables")
    if pool.null_block.block_id in num_references:
        raise RuntimeError("the null block is in a block table")


def _check_shape(
    tables: BlockTables,
    null_block: KVCacheBlock,
    groups: Sequence[KvCacheGroupSpec],
    block_size: int,
) -> None:
    if len({len(blocks) for blocks in tables.blocks}) != 1 or len(tables.blocks) != len(groups):
        raise RuntimeError("the block tables of a request differ in length")
    for blocks, start, group in zip(tables.blocks, tables.num_skipped, groups, strict=True):
        if start > group.num_skipped_blocks(len(blocks) * block_size, block_size):
            raise RuntimeError(f"a table of {group} has lost blocks of its window")
        if any(block is not null_block for block in blocks[:start]):
            raise RuntimeError("a block is in a table whose window has left it")
