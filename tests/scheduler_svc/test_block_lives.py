"""Lives of KV blocks, as the pool and the cache tell of them on a clock that the test moves."""

from scheduler_svc.block_lives import BlockLives
from scheduler_svc.block_pool import BlockPool

HASHES = [bytes([number]) * 32 for number in range(8)]


def make(num_blocks=5, sample=1.0):
    lives = BlockLives(sample)
    return BlockPool(num_blocks, lives=lives), lives


def seen(histogram):
    return histogram.count, histogram.sum


def fill(pool, num_blocks, first_hash=0):
    blocks = pool.get_new_blocks(num_blocks)
    pool.cache_full_blocks(blocks, HASHES[first_hash : first_hash + num_blocks], 0, num_blocks)
    return blocks


def test_a_cached_block_that_is_taken_again_has_lived_and_lain_unused():
    pool, lives = make(num_blocks=3)
    blocks = fill(pool, 2)
    lives.now_s = 10.0
    pool.free_blocks(blocks)
    pool.touch(blocks[:1])
    pool.free_blocks(blocks[:1])
    lives.now_s = 25.0
    fill(pool, 2, first_hash=2)
    assert seen(lives.lifetime) == (2, 50.0)
    assert seen(lives.idle_before_evict) == (2, 15.0 + 25.0)
    assert seen(lives.reuse_gap) == (1, 10.0)


def test_each_hit_ends_a_gap():
    pool, lives = make()
    blocks = fill(pool, 1)
    for now_s in (1.0, 4.0):
        lives.now_s = now_s
        pool.touch(blocks)
    assert seen(lives.reuse_gap) == (2, 4.0)


def test_a_block_that_cached_nothing_is_not_evicted():
    pool, lives = make(num_blocks=3)
    pool.free_blocks(pool.get_new_blocks(2))
    lives.now_s = 5.0
    pool.get_new_blocks(2)
    assert seen(lives.lifetime) == (0, 0.0)


def test_a_reset_is_no_eviction():
    pool, lives = make(num_blocks=3)
    pool.free_blocks(fill(pool, 2))
    assert pool.reset_prefix_cache()
    lives.now_s = 5.0
    pool.free_blocks(fill(pool, 2))
    lives.now_s = 6.0
    fill(pool, 2, first_hash=2)
    assert seen(lives.lifetime) == (2, 2.0)


def test_only_the_sample_is_followed():
    pool, lives = make(num_blocks=5, sample=0.5)
    pool.free_blocks(fill(pool, 4))
    fill(pool, 4, first_hash=4)
    assert lives.lifetime.count == 2
