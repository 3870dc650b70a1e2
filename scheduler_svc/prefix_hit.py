"""The longest beginning of a request that every group of layers still has in the cache.

It reads the pool's hash map and takes nothing. It knows no request: `kv_cache_manager` says which
hashes may be hit, and takes what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.block_pool import BlockPool
from scheduler_svc.free_block_queue import KVCacheBlock
from scheduler_svc.kv_cache_groups import KvCacheGroupSpec


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks that hold the beginning of a request."""

    blocks: Sequence[Sequence[KVCacheBlock]] = ()
    """By group, all of one length; the null block where a window has moved on."""
    num_tokens: int = 0


NO_HIT = PrefixHit()


def find_prefix_hit(
    pool: BlockPool,
    groups: Sequence[KvCacheGroupSpec],
    block_hashes: Sequence[bytes],
    block_size: int,
) -> PrefixHit:
    """Find the longest hit within these hashes.

    A full group has all blocks up to its first miss, so a shorter hit is one too. A sliding group
    needs only the blocks that the window of the next token reaches; a hit that another group cuts
    short may end where these are gone, so the sliding groups are asked until all agree.
    """
    num_blocks = len(block_hashes)
    if len(groups) == 1 and not groups[0].sliding_window:
        leading = _find_leading(pool, 0, block_hashes, num_blocks)
        return PrefixHit([leading], len(leading) * block_size)
    found: list[list[KVCacheBlock]] = [[] for _ in groups]
    sliding = []
    for group_id, group in enumerate(groups):
        if group.sliding_window:
            sliding.append((group_id, -(-(group.sliding_window - 1) // block_size)))
        else:
            found[group_id] = _find_leading(pool, group_id, block_hashes, num_blocks)
            num_blocks = len(found[group_id])
    agreed = not sliding
    while not agreed:
        limit = num_blocks
        for group_id, num_needed in sliding:
            found[group_id] = _find_ending(pool, group_id, block_hashes, num_blocks, num_needed)
            num_blocks = len(found[group_id])
        agreed = num_blocks == limit
    return PrefixHit([blocks[:num_blocks] for blocks in found], num_blocks * block_size)


def _find_leading(
    pool: BlockPool, group_id: int, block_hashes: Sequence[bytes], limit: int
) -> list[KVCacheBlock]:
    """The blocks up to the first miss, at most `limit`."""
    blocks = list[KVCacheBlock]()
    get_cached_block = pool.get_cached_block
    for block_hash in block_hashes:
        block = get_cached_block(block_hash, group_id)
        if block is None or len(blocks) == limit:
            break
        blocks.append(block)
    return blocks


def _find_ending(
    pool: BlockPool, group_id: int, block_hashes: Sequence[bytes], limit: int, num_needed: int
) -> list[KVCacheBlock]:
    """The longest table of at most `limit` blocks whose last `num_needed` ones are cached.

    One that is shorter than `num_needed` has all its blocks.
    """
    end, run = limit, list[KVCacheBlock]()
    for index in range(limit - 1, -1, -1):
        if len(run) == num_needed:
            break
        block = pool.get_cached_block(block_hashes[index], group_id)
        if block is None:
            end = index
            run.clear()
        else:
            run.append(block)
    return [pool.null_block] * (end - len(run)) + run[::-1]
