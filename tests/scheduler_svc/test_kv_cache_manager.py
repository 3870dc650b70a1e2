import pytest

from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.prefix_cache_stats import PrefixCacheStats
from scheduler_svc.prefix_hit import NO_HIT
from tests.scheduler_svc.factories import make_request


def manager_of(num_blocks=11, **options):
    return KVCacheManager(num_blocks, 4, **options)


def run_through(kv, request):
    """Admit, compute and free a request, so that its full blocks are cached."""
    assert admit(kv, request) is not None
    request.num_computed_tokens = request.num_tokens
    kv.free(request)


def admit(kv, request, num_new=None, **options):
    hit = kv.get_computed_blocks(request)
    num_new = request.num_tokens - hit.num_tokens if num_new is None else num_new
    return kv.admit(request, hit, num_new, **options)


def test_an_admitted_request_gets_blocks_for_its_tokens():
    kv = manager_of()
    assert admit(kv, make_request(9)) == [1, 2, 3]
    assert kv.usage == 0.3


def test_a_running_request_gets_a_block_only_when_one_is_full():
    kv, request = manager_of(), make_request(7)
    admit(kv, request)
    request.num_computed_tokens = 7
    assert list(kv.allocate_slots(request, 1)) == []
    request.num_computed_tokens = 8
    assert list(kv.allocate_slots(request, 1)) == [3]
    assert kv.block_ids(request) == [1, 2, 3]


def test_too_few_blocks_change_nothing():
    kv = manager_of(num_blocks=4)
    first, second = make_request(8), make_request(8)
    admit(kv, first)
    assert admit(kv, second) is None
    assert (kv.num_free_blocks, kv.num_tables) == (1, 1)
    first.num_computed_tokens = 8
    assert kv.allocate_slots(first, 5) is None
    assert kv.block_ids(first) == [1, 2]
    kv.check_integrity()


def test_the_same_beginning_is_hit():
    kv = manager_of()
    run_through(kv, make_request(range(10)))
    hit = kv.get_computed_blocks(make_request([*range(8), 50, 51, 52, 53]))
    assert ([b.block_id for b in hit.blocks[0]], hit.num_tokens) == ([1, 2], 8)


def test_a_fully_cached_prompt_recomputes_its_last_block():
    kv = manager_of()
    run_through(kv, make_request(range(8)))
    assert kv.get_computed_blocks(make_request(range(8))).num_tokens == 4


def test_the_walk_ends_at_the_first_miss():
    kv = manager_of()
    run_through(kv, make_request(range(12)))
    assert kv.get_computed_blocks(make_request([99, *range(1, 12)])).num_tokens == 0


def test_a_lookup_takes_nothing():
    kv = manager_of()
    run_through(kv, make_request(range(8)))
    kv.get_computed_blocks(make_request(range(9)))
    assert kv.num_free_blocks == 10


def test_another_salt_is_not_hit():
    kv = manager_of()
    run_through(kv, make_request(range(8), cache_salt="a"))
    assert kv.get_computed_blocks(make_request(range(9), cache_salt="b")) is not NO_HIT
    assert kv.get_computed_blocks(make_request(range(9), cache_salt="b")).num_tokens == 0
    assert kv.get_computed_blocks(make_request(range(9), cache_salt="a")).num_tokens == 8


def test_prompt_logprobs_do_not_read_the_cache_but_write_it():
    kv = manager_of()
    run_through(kv, make_request(range(8), prompt_logprobs=1))
    assert kv.get_computed_blocks(make_request(range(9), prompt_logprobs=1)).num_tokens == 0
    assert kv.get_computed_blocks(make_request(range(9))).num_tokens == 8


@pytest.mark.parametrize("prompt_logprobs, enable_caching", [(1, True), (None, False)])
def test_an_admission_without_a_lookup_does_not_count(prompt_logprobs, enable_caching):
    kv = manager_of(enable_caching=enable_caching)
    admit(kv, make_request(range(8), prompt_logprobs=prompt_logprobs))
    assert kv.stats == PrefixCacheStats()


def test_nothing_is_hit_with_caching_off():
    kv = manager_of(enable_caching=False)
    run_through(kv, make_request(range(8)))
    assert kv.get_computed_blocks(make_request(range(9))) is NO_HIT


def test_a_second_identical_prompt_hits_blocks_of_the_same_step():
    kv = manager_of()
    first, second = make_request(range(9)), make_request(range(9))
    assert admit(kv, first) == [1, 2, 3]
    assert admit(kv, second) == [1, 2, 4]


def test_a_chunk_caches_only_the_blocks_that_it_fills():
    kv = manager_of()
    admit(kv, make_request(range(12)), num_new=6)
    assert kv.get_computed_blocks(make_request(range(12))).num_tokens == 4


def test_hits_are_not_evicted_by_the_same_admission():
    kv = manager_of(num_blocks=4)
    run_through(kv, make_request(range(8)))
    assert admit(kv, make_request([*range(8), 60, 61])) == [1, 2, 3]
    kv.check_integrity()


def test_a_free_hit_counts_as_a_needed_block():
    kv = manager_of(num_blocks=4)
    run_through(kv, make_request(range(8)))
    request = make_request([*range(8), 60, 61, 62, 63, 64])
    assert admit(kv, request) is None
    assert kv.num_free_blocks == 3


def test_a_reservation_must_fit_but_is_not_taken():
    kv = manager_of(num_blocks=4)
    assert admit(kv, make_request(16), num_new=4, num_reserved_tokens=16) is None
    assert admit(kv, make_request(12), num_new=4, num_reserved_tokens=12) == [1]


def test_spare_blocks_must_stay_free():
    kv = manager_of(num_blocks=4)
    assert admit(kv, make_request(8), num_spare_blocks=2) is None
    assert admit(kv, make_request(8), num_spare_blocks=1) is not None


def test_the_tail_of_a_freed_request_is_evicted_first():
    kv = manager_of(num_blocks=4)
    run_through(kv, make_request(range(12)))
    admit(kv, make_request([70, 71]))
    assert kv.get_computed_blocks(make_request([*range(12), 1])).num_tokens == 8


def test_the_least_recently_freed_request_is_evicted_first():
    kv = manager_of(num_blocks=5)
    old, recent = list(range(8)), list(range(100, 108))
    run_through(kv, make_request(old))
    run_through(kv, make_request(recent))
    admit(kv, make_request(range(200, 208)))
    assert kv.get_computed_blocks(make_request([*old, 1])).num_tokens == 0
    assert kv.get_computed_blocks(make_request([*recent, 1])).num_tokens == 8


def test_freeing_twice_is_harmless():
    kv, request = manager_of(), make_request(8)
    admit(kv, request)
    kv.free(request)
    kv.free(request)
    kv.check_integrity()


def test_statistics_count_admissions_only():
    kv = manager_of()
    run_through(kv, make_request(range(8)))
    kv.get_computed_blocks(make_request(range(9)))
    admit(kv, make_request(range(9)))
    assert (kv.stats.num_queries, kv.stats.num_hits) == (17, 8)


def test_statistics_keep_preempted_lookups_apart():
    kv = manager_of()
    run_through(kv, make_request(range(8)))
    preempted = make_request(range(9))
    preempted.num_preemptions = 1
    admit(kv, preempted)
    assert (kv.stats.num_queries, kv.stats.num_hits) == (8, 0)
    assert (kv.stats.num_preempted_queries, kv.stats.num_preempted_hits) == (9, 8)


def test_a_reset_needs_all_blocks_free():
    kv, request = manager_of(), make_request(range(8))
    admit(kv, request)
    assert not kv.reset_prefix_cache()
    kv.free(request)
    assert kv.reset_prefix_cache()
    assert kv.get_computed_blocks(make_request(range(9))).num_tokens == 0


def test_the_integrity_check_sees_a_leaked_reference():
    kv, request = manager_of(), make_request(8)
    admit(kv, request)
    del kv._tables[request.request_id]
    with pytest.raises(RuntimeError, match="tables"):
        kv.check_integrity()
