from scheduler_svc.request import RequestStatus
from tests.scheduler_svc.factories import (
    add,
    make_scheduler,
    scheduled,
    step,
)


def crowded(num_blocks=7, **options):
    """Two requests that fill a pool of six blocks of four tokens."""
    scheduler = make_scheduler(num_blocks=num_blocks, max_model_len=24, **options)
    first = add(scheduler, 11, max_tokens=12)
    second = add(scheduler, 11, max_tokens=12)
    return scheduler, first, second


def ids(requests):
    return [request.request_id for request in requests]


def test_the_last_running_request_is_preempted_when_blocks_run_out():
    scheduler, first, second = crowded()
    step(scheduler)
    step(scheduler)
    output, _ = step(scheduler)
    assert output.preempted_req_ids == [second.request_id]
    assert scheduled(output) == {first.request_id: 1}
    assert second.status is RequestStatus.PREEMPTED
    assert (second.num_computed_tokens, second.num_preemptions) == (0, 1)


def test_a_preempted_request_keeps_its_output_and_comes_back_in_full():
    scheduler, _, second = crowded()
    for _ in range(3):
        step(scheduler)
    num_delivered = second.num_output_tokens
    assert num_delivered == 2
    while second.status is not RequestStatus.RUNNING:
        output, _ = step(scheduler)
    (new,) = output.scheduled_new_reqs
    assert new.request_id == second.request_id
    assert len(new.output_token_ids) == num_delivered
    assert list(new.prompt_token_ids) == second.all_token_ids[:11]


def test_no_waiting_request_is_admitted_in_a_step_with_a_preemption():
    scheduler, _, _ = crowded()
    step(scheduler)
    step(scheduler)
    add(scheduler, 1, max_tokens=1)
    output, _ = step(scheduler)
    assert output.preempted_req_ids
    assert not output.scheduled_new_reqs


def test_a_preempted_request_goes_before_those_that_wait():
    scheduler, _, second = crowded()
    waiting = add(scheduler, 11)
    for _ in range(3):
        step(scheduler)
    order = []
    while scheduler.has_requests:
        output, _ = step(scheduler)
        order += [new.request_id for new in output.scheduled_new_reqs]
    assert order.index(second.request_id) < order.index(waiting.request_id)


def test_a_request_that_is_last_itself_is_its_own_victim():
    scheduler = make_scheduler(num_blocks=7, max_model_len=24)
    first = add(scheduler, 11, max_tokens=2)
    second = add(scheduler, 12, max_tokens=12)
    step(scheduler)
    output, _ = step(scheduler)
    assert output.preempted_req_ids == [second.request_id]
    assert scheduled(output) == {first.request_id: 1}


def test_cached_token_counts_are_those_of_the_first_admission():
    scheduler, first, second = crowded(num_blocks=7)
    reported = {}
    finished = {}
    while scheduler.has_requests:
        _, outputs = step(scheduler)
        for client in outputs.values():
            for item in client.scheduled:
                assert item.request_id not in reported
                reported[item.request_id] = item.num_cached_tokens
            finished |= {item.request_id: item for item in client.finished}
    assert scheduler.make_stats().num_preemptions > 0
    assert reported == {first.request_id: 0, second.request_id: 0}
    assert finished[second.request_id].num_cached_tokens == 0


def test_losing_the_worker_keeps_tokens_and_order():
    scheduler = make_scheduler()
    requests = [add(scheduler, 6) for _ in range(3)]
    step(scheduler)
    scheduler.forget_worker()
    scheduler.check_integrity()
    assert scheduler.make_stats().kv_cache_usage == 0
    output, _ = step(scheduler)
    assert [new.request_id for new in output.scheduled_new_reqs] == ids(requests)
    assert all(len(new.output_token_ids) == 1 for new in output.scheduled_new_reqs)
    assert all(new.num_computed_tokens == 0 for new in output.scheduled_new_reqs)
    assert not output.preempted_req_ids


# Prefix cache.


def test_a_repeated_prompt_is_reported_as_cached():
    scheduler = make_scheduler()
    add(scheduler, list(range(10)), max_tokens=1)
    step(scheduler)
    second = add(scheduler, list(range(10)))
    output, outputs = step(scheduler)
    assert scheduled(output) == {second.request_id: 2}
    assert outputs[0].scheduled[0].num_cached_tokens == 8
    stats = scheduler.make_stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (20, 8)


def test_a_request_that_is_held_back_counts_once_in_the_statistics():
    scheduler = make_scheduler(num_blocks=7, max_model_len=24)
    add(scheduler, 16, max_tokens=4)
    add(scheduler, 16, max_tokens=4)
    step(scheduler)
    step(scheduler)
    assert scheduler.make_stats().prefix_cache_queries == 16


def test_lookups_of_preempted_requests_are_counted_apart():
    scheduler = make_scheduler()
    request = add(scheduler, 9)
    step(scheduler)
    scheduler.preempt_all()
    step(scheduler)
    stats = scheduler.kv_cache.stats
    assert (stats.num_queries, stats.num_hits) == (9, 0)
    assert (stats.num_preempted_queries, stats.num_preempted_hits) == (10, 8)
    assert scheduler.make_stats().prefix_cache_queries == 9
    assert request.num_cached_tokens == 0


def test_prompt_logprobs_compute_the_whole_prompt_though_it_is_cached():
    scheduler = make_scheduler()
    add(scheduler, range(100, 112), max_tokens=1)
    step(scheduler)
    request = add(scheduler, range(100, 112), prompt_logprobs=1)
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 12}


# Ends.


def run(scheduler, next_token=lambda request: 1):
    ends = []
    while scheduler.has_requests:
        _, outputs = step(scheduler, next_token)
        ends += [end for client in outputs.values() for end in client.finished]
    return ends
