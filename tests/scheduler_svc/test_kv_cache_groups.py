"""What windows need, and what the manager does with several groups of layers."""

import pytest

from scheduler_svc.kv_cache_groups import KvCacheGroupSpec, max_held_blocks, max_step_tokens
from scheduler_svc.kv_cache_manager import KVCacheManager
from tests.scheduler_svc.factories import add, make_request, make_scheduler, step
from tests.scheduler_svc.grouped_model import FULL, sliding

BLOCK_SIZE = 4


def manager_of(*groups, num_blocks=41, **options):
    return KVCacheManager(num_blocks, BLOCK_SIZE, groups=groups, **options)


def admit(kv, request, num_new=None, **options):
    hit = kv.get_computed_blocks(request)
    num_new = request.num_tokens - hit.num_tokens if num_new is None else num_new
    ids = kv.admit(request, hit, num_new, **options)
    request.num_computed_tokens = hit.num_tokens + num_new
    return ids


def decode(kv, request, num_tokens):
    """Compute tokens one by one, each known when the next is computed."""
    for index in range(num_tokens):
        request.append_output_token(500 + index)
        assert kv.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
        kv.check_integrity()


@pytest.mark.parametrize(
    ("window", "num_tokens", "num_skipped"),
    # The next token is number `num_tokens`, counted from 0.
    [(0, 100, 0), (5, 4, 0), (5, 7, 0), (5, 8, 1), (5, 11, 1), (5, 12, 2), (1, 4, 1), (4, 7, 1)],
)
def test_a_block_is_skipped_when_the_window_has_left_its_last_token(
    window, num_tokens, num_skipped
):
    assert KvCacheGroupSpec(1, window).num_skipped_blocks(num_tokens, BLOCK_SIZE) == num_skipped


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9, 16])
@pytest.mark.parametrize("num_step_tokens", [1, 3, 4, 10])
@pytest.mark.parametrize("block_size", [1, 4, 5])
def test_the_most_held_is_what_a_long_sequence_really_holds(window, num_step_tokens, block_size):
    group = KvCacheGroupSpec(1, window)
    held = [
        -(-(start + num_step_tokens) // block_size) - group.num_skipped_blocks(start, block_size)
        for start in range(200)
    ]
    assert group.max_held_blocks(10_000, block_size, num_step_tokens) == max(held)


def test_a_short_sequence_holds_no_more_than_it_has():
    assert sliding(100).max_held_blocks(9, BLOCK_SIZE, 64) == 3
    assert max_held_blocks((FULL, sliding(5), sliding(5)), 100, BLOCK_SIZE, 1) == 25 + 2 + 2


def test_drafts_and_overlap_count_as_tokens_of_a_step():
    assert max_step_tokens(64, 0) == 64
    assert max_step_tokens(1, 0) == 2
    assert max_step_tokens(8192, 16) == 129


@pytest.mark.parametrize("values", [(0, 4), (1, -1)])
def test_a_group_of_nothing_is_refused(values):
    with pytest.raises(ValueError, match="must be at least"):
        KvCacheGroupSpec(*values)


def test_each_group_gets_as_many_blocks():
    kv, request = manager_of(FULL, sliding(5)), make_request(9)
    assert admit(kv, request) == [1, 2, 3, 4, 5, 6]
    assert kv.num_free_blocks == 34
    for token_id in (1, 2, 3):
        request.append_output_token(token_id)
    request.num_computed_tokens = 12
    assert kv.allocate_slots(request, 1) == [7, 8]
    assert kv.block_ids(request) == [1, 2, 3, 7, 0, 5, 6, 8]


def test_blocks_out_of_the_window_are_given_back():
    kv, request = manager_of(FULL, sliding(5)), make_request(8)
    admit(kv, request)
    decode(kv, request, 20)
    # 28 tokens: 7 blocks; tokens 24 and up see from 20 on, which is in the sixth block.
    assert kv.block_ids(request)[7:12] == [0, 0, 0, 0, 0]
    assert kv.num_free_blocks == 40 - 7 - 2


def test_a_window_counts_from_known_tokens_alone():
    kv, request = manager_of(sliding(5)), make_request(8)
    admit(kv, request)
    request.num_computed_tokens = 20  # twelve drafts, of which all may be wrong
    kv.allocate_slots(request, 1)
    assert kv.block_ids(request)[0] != 0
    kv.check_integrity()


def test_nothing_is_added_if_too_few_blocks_are_free_for_all_groups():
    kv, request = manager_of(FULL, sliding(9), num_blocks=6), make_request(8)
    admit(kv, request)
    assert kv.allocate_slots(request, 1) is None
    assert kv.block_ids(request) == [1, 2, 3, 4]
    kv.check_integrity()


def test_what_a_window_leaves_can_be_taken_by_the_same_allocation():
    kv, request = manager_of(sliding(5), num_blocks=4, enable_caching=False), make_request(12)
    admit(kv, request)
    request.append_output_token(1)
    assert kv.allocate_slots(request, 1) == [2]
    assert kv.block_ids(request) == [0, 0, 3, 2]


def test_the_oldest_of_what_windows_left_is_evicted_first():
    kv, request = manager_of(sliding(5)), make_request(8)
    admit(kv, request)
    decode(kv, request, 12)
    left = [1, 2]
    queue = kv._pool._free_queue.block_ids()
    assert [block_id for block_id in queue if block_id in left] == left


def test_a_request_evicts_its_last_blocks_of_all_groups_first():
    kv, request = manager_of(FULL, sliding(100), num_blocks=5), make_request(8)
    admit(kv, request)
    kv.free(request)
    assert kv._pool._free_queue.block_ids() == [2, 4, 1, 3]


def run_through(kv, request):
    admit(kv, request)
    kv.free(request)


def test_a_hit_of_a_window_needs_only_the_blocks_that_it_reaches():
    kv, first = manager_of(sliding(5)), make_request(range(40))
    admit(kv, first)
    kv.free(first)
    kv._pool.uncache_since(0, kv._pool.blocks[1:9])
    hit = kv.get_computed_blocks(make_request([*range(40), 1]))
    assert [block.block_id for block in hit.blocks[0]] == [0] * 9 + [10]
    assert hit.num_tokens == 40


def test_a_hit_of_a_window_is_the_last_run_that_is_long_enough():
    kv, first = manager_of(sliding(9)), make_request(range(40))  # two blocks
    run_through(kv, first)
    kv._pool.uncache_since(0, [kv._pool.blocks[i] for i in (3, 6, 9)])
    hit = kv.get_computed_blocks(make_request([*range(40), 1]))
    assert [block.block_id for block in hit.blocks[0]] == [0] * 6 + [7, 8]


def test_a_hit_shorter_than_the_window_needs_all_its_blocks():
    kv, first = manager_of(sliding(100)), make_request(range(12))
    run_through(kv, first)
    assert kv.get_computed_blocks(make_request([*range(12), 1])).num_tokens == 12
    kv._pool.uncache_since(0, [kv._pool.blocks[2]])
    assert kv.get_computed_blocks(make_request([*range(12), 1])).num_tokens == 4


def test_a_window_of_one_token_needs_no_block_for_a_hit():
    kv = manager_of(sliding(1), num_blocks=11)
    hit = kv.get_computed_blocks(make_request(range(9)))
    assert (hit.num_tokens, [block.block_id for block in hit.blocks[0]]) == (8, [0, 0])


def test_groups_agree_on_the_longest_hit_that_all_have():
    kv = manager_of(FULL, sliding(5), sliding(9))
    run_through(kv, make_request(range(40)))  # blocks 1-10, 11-20, 21-30
    blocks = kv._pool.blocks
    # The full group ends at 8 blocks; there and at 7 a window lacks one; at 6 and 5 the other does.
    kv._pool.uncache_since(0, [blocks[i] for i in (9, 18, 17, 26)])
    hit = kv.get_computed_blocks(make_request([*range(40), 1]))
    assert [[block.block_id for block in group] for group in hit.blocks] == [
        [1, 2, 3, 4, 5],
        [0, 0, 0, 0, 15],
        [0, 0, 0, 24, 25],
    ]


def test_a_hit_is_admitted_with_null_blocks_before_its_windows():
    kv = manager_of(FULL, sliding(5))
    run_through(kv, make_request(range(12)))
    again = make_request([*range(12), 1])
    assert admit(kv, again) == [1, 2, 3, 7, 0, 0, 6, 8]
    kv.check_integrity()
    kv.free(again)
    assert kv.num_free_blocks == 40


def test_a_block_is_found_by_its_own_group_alone():
    kv = manager_of(FULL, sliding(100))
    run_through(kv, make_request(range(8)))
    kv._pool.uncache_since(0, [kv._pool.blocks[3]])  # the second group's first
    assert kv.get_computed_blocks(make_request(range(9))).num_tokens == 0


def test_an_admission_reserves_what_a_window_needs_at_a_time():
    options = {"num_new": 4, "num_reserved_tokens": 100}
    # 4 tokens a step and a window of 5 touch 3 blocks, as a full group would 25.
    kv = manager_of(sliding(5), num_blocks=4, max_step_tokens=4)
    assert admit(kv, make_request(100), **options) == [1]
    kv = manager_of(sliding(5), num_blocks=3, max_step_tokens=4)
    assert admit(kv, make_request(100), **options) is None


def test_what_a_request_cached_and_its_window_left_is_forgotten_with_the_rest():
    kv, request = manager_of(sliding(5)), make_request(range(32))
    kv.begin_step(1)
    admit(kv, request, 16)
    kv.begin_step(2)
    assert kv.allocate_slots(request, 16) is not None
    assert kv.block_ids(request)[:3] == [0, 0, 0]
    assert kv.get_computed_blocks(make_request(range(9))).num_tokens == 8
    kv.uncache_since(request, 1)
    assert kv.get_computed_blocks(make_request(range(9))).num_tokens == 0
    kv.free(request)
    kv.check_integrity()


@pytest.mark.parametrize("damage", ["null", "window", "groups", "length"])
def test_the_integrity_check_sees_damaged_tables(damage):
    kv, request = manager_of(FULL, sliding(5)), make_request(8)
    admit(kv, request)
    tables = kv._tables[request.request_id]
    if damage == "null":
        tables.blocks[0][0] = kv._pool.null_block
    elif damage == "window":
        tables.skip(1, 2, kv._pool.null_block)
    elif damage == "groups":
        tables.blocks[0][0], tables.blocks[1][0] = tables.blocks[1][0], tables.blocks[1][1]
    else:
        tables.blocks[1].pop()
    with pytest.raises(RuntimeError):
        kv.check_integrity()


def test_a_request_is_refused_only_if_it_holds_too_much_at_a_time():
    scheduler = make_scheduler(
        kv_cache_groups=(sliding(5),), num_blocks=5, max_num_batched_tokens=8
    )
    request = add(scheduler, 20, max_tokens=100, ignore_eos=True)
    while scheduler.has_requests:
        step(scheduler)
    assert request.num_output_tokens == 100
