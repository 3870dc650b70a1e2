import pytest

from scheduler_svc.block_pool import BlockPool
from scheduler_svc.free_block_queue import FreeBlockQueue, KVCacheBlock

HASHES = [bytes([i]) * 32 for i in range(20)]


def queue_of(num_blocks: int) -> tuple[FreeBlockQueue, list[KVCacheBlock]]:
    blocks = [KVCacheBlock(i) for i in range(num_blocks)]
    return FreeBlockQueue(blocks), blocks


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def cached_pool(num_blocks: int, num_cached: int) -> BlockPool:
    """A pool whose blocks 1..num_cached are cached under HASHES[1..] and free."""
    pool = BlockPool(num_blocks)
    blocks = pool.get_new_blocks(num_cached)
    pool.cache_full_blocks(blocks, HASHES[1:], 0, num_cached)
    pool.free_blocks(blocks)
    return pool


def test_the_free_queue_gives_blocks_in_order():
    queue, _ = queue_of(4)
    assert ids(queue.popleft_n(2)) == [0, 1]
    assert queue.block_ids() == [2, 3]


def test_the_free_queue_loses_a_middle_block():
    queue, blocks = queue_of(4)
    queue.remove(blocks[2])
    assert queue.block_ids() == [0, 1, 3]
    assert queue.num_free_blocks == 3


def test_the_free_queue_takes_blocks_at_both_ends_in_order():
    queue, blocks = queue_of(4)
    taken = queue.popleft_n(4)
    queue.append_n(taken[:1])
    queue.append_n(taken[1:2])
    queue.prepend_n([blocks[3], blocks[2]])
    assert queue.block_ids() == [3, 2, 0, 1]


def test_the_free_queue_can_be_emptied_and_filled_again():
    queue, _ = queue_of(3)
    queue.append_n(queue.popleft_n(3))
    assert queue.block_ids() == [0, 1, 2]


def test_taking_more_than_is_free_is_refused():
    queue, _ = queue_of(2)
    with pytest.raises(ValueError, match="2 are free"):
        queue.popleft_n(3)


def test_removing_a_block_that_is_not_free_is_refused():
    queue, _ = queue_of(2)
    (taken,) = queue.popleft_n(1)
    with pytest.raises(RuntimeError, match="not in the free queue"):
        queue.remove(taken)


def test_block_zero_is_never_given():
    pool = BlockPool(5)
    assert ids(pool.get_new_blocks(4)) == [1, 2, 3, 4]


def test_usage_counts_all_but_the_null_block():
    pool = BlockPool(5)
    pool.get_new_blocks(1)
    assert pool.usage == 0.25


def test_usage_of_a_pool_with_only_the_null_block_is_zero():
    assert BlockPool(1).usage == 0.0


def test_freed_hashed_blocks_go_to_the_tail_and_unhashed_ones_to_the_front():
    pool = BlockPool(7)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, HASHES, 0, 2)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.get_new_blocks(6)) == [3, 4, 5, 6, 2, 1]


def test_with_caching_off_freed_blocks_are_reused_first():
    pool = BlockPool(5, enable_caching=False)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, HASHES, 0, 2)
    pool.free_blocks(reversed(blocks))
    assert ids(pool.get_new_blocks(2)) == [2, 1]
    assert pool.get_cached_block(HASHES[0]) is None


def test_a_cached_block_is_found_after_it_was_freed():
    pool = cached_pool(5, 1)
    block = pool.get_cached_block(HASHES[1])
    assert block is not None
    assert block.block_id == 1


def test_reusing_a_block_forgets_what_it_cached():
    pool = cached_pool(3, 2)
    pool.get_new_blocks(2)
    assert pool.get_cached_block(HASHES[1]) is None
    pool.check_integrity()


def test_a_touched_block_leaves_the_free_queue():
    pool = cached_pool(4, 1)
    block = pool.get_cached_block(HASHES[1])
    pool.touch([block])
    assert pool.num_free_blocks == 2
    assert block.block_id not in ids(pool.get_new_blocks(2))
    pool.check_integrity()


def test_a_shared_block_is_free_after_its_last_holder():
    pool = cached_pool(4, 1)
    block = pool.get_cached_block(HASHES[1])
    pool.touch([block])
    pool.touch([block])
    pool.free_blocks([block])
    assert pool.num_free_blocks == 2
    pool.free_blocks([block])
    assert pool.num_free_blocks == 3


def test_freeing_a_free_block_is_refused():
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    pool.free_blocks([block])
    with pytest.raises(RuntimeError, match="more often"):
        pool.free_blocks([block])


def test_evicting_one_duplicate_keeps_the_other():
    pool = BlockPool(3)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([first], HASHES, 0, 1)
    pool.cache_full_blocks([second], HASHES, 0, 1)
    pool.check_integrity()
    pool.free_blocks([first])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(HASHES[0]) is second
    pool.check_integrity()


def test_three_duplicates_leave_one_by_one():
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(3)
    for block in blocks:
        pool.cache_full_blocks([block], HASHES, 0, 1)
    pool.free_blocks(blocks)
    for num_left in (2, 1, 0):
        pool.get_new_blocks(1)
        pool.check_integrity()
        assert (pool.get_cached_block(HASHES[0]) is not None) == (num_left > 0)


def test_caching_a_block_twice_is_refused():
    pool = BlockPool(3)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, HASHES, 0, 1)
    with pytest.raises(RuntimeError, match="already cached"):
        pool.cache_full_blocks(blocks, HASHES, 0, 1)


def test_what_is_uncached_keeps_its_references_and_what_is_older_its_hash():
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(3)
    for pool.step, index in ((4, 0), (5, 1), (6, 2)):
        pool.cache_full_blocks(blocks, HASHES, index, index + 1)
    assert pool.uncache_since(5, pool.blocks) == blocks[1:]
    assert pool.get_cached_block(HASHES[0]) is blocks[0]
    assert pool.get_cached_block(HASHES[1]) is None
    assert [block.ref_cnt for block in blocks] == [1, 1, 1]
    pool.check_integrity()


def test_a_free_block_that_is_uncached_is_taken_before_what_is_cached():
    pool = cached_pool(5, 4)
    uncached = pool.get_cached_block(HASHES[2])
    pool.uncache_since(0, [uncached])
    pool.check_integrity()
    assert pool.get_new_blocks(1) == [uncached]


def test_a_hash_is_new_only_with_its_first_block():
    pool = BlockPool(6)
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
    assert pool.cache_full_blocks(first, HASHES, 0, 2) == [0, 1]
    assert pool.cache_full_blocks(second, [HASHES[0], HASHES[5]], 0, 2) == [1]


def test_a_reset_forgets_all_hashes():
    pool = cached_pool(5, 3)
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(HASHES[2]) is None
    pool.check_integrity()


def test_a_reset_does_nothing_while_a_block_is_held():
    pool = cached_pool(5, 2)
    pool.touch([pool.get_cached_block(HASHES[1])])
    assert not pool.reset_prefix_cache()
    assert pool.get_cached_block(HASHES[2]) is not None


@pytest.mark.parametrize("damage", ["ref_cnt", "hash", "null"])
def test_the_integrity_check_sees_damage(damage):
    pool = cached_pool(5, 2)
    if damage == "ref_cnt":
        pool.blocks[3].ref_cnt = 1
    elif damage == "hash":
        pool.blocks[1].block_hash = HASHES[9]
    else:
        pool.null_block.block_hash = HASHES[9]
    with pytest.raises(RuntimeError):
        pool.check_integrity()
