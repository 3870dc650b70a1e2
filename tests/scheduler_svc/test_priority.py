"""Scheduling by priority: order, victims, and taking a victim out of the step again."""

from scheduler_svc.request import RequestStatus
from tests.scheduler_svc.factories import add, make_scheduler, scheduled, step


def priority_scheduler(**options):
    return make_scheduler(**({"policy": "priority"} | options))


def test_the_most_urgent_waiting_request_is_admitted_first():
    scheduler = priority_scheduler(max_num_seqs=1)
    late = add(scheduler, 4, priority=5)
    urgent = add(scheduler, 4, priority=-5)
    output, _ = step(scheduler)
    assert list(scheduled(output)) == [urgent.request_id]
    assert late.status is RequestStatus.WAITING


def test_a_waiting_request_never_preempts_because_of_max_num_seqs():
    scheduler = priority_scheduler(max_num_seqs=1)
    running = add(scheduler, 4, priority=5)
    step(scheduler)
    urgent = add(scheduler, 4, priority=-5)
    output, _ = step(scheduler)
    assert list(scheduled(output)) == [running.request_id]
    assert (urgent.status, output.preempted_req_ids) == (RequestStatus.WAITING, [])


def test_a_victim_before_the_cursor_leaves_the_step_again():
    scheduler = priority_scheduler(num_blocks=8, max_model_len=28)
    # The first row needs a block in the third step and gets the last one; the second row then
    # finds none left and takes the first one's place.
    lazy = add(scheduler, 11, priority=9, max_tokens=12)
    step(scheduler)
    urgent = add(scheduler, 12, priority=0, max_tokens=12)
    step(scheduler)
    assert scheduler.kv_cache.num_free_blocks == 1
    output, _ = step(scheduler)
    assert scheduled(output) == {urgent.request_id: 1}
    assert output.preempted_req_ids == [lazy.request_id]
    assert output.total_num_scheduled_tokens == 1
    assert output.scheduled_cached_reqs.request_ids == [urgent.request_id]
    assert lazy.status is RequestStatus.PREEMPTED
    assert lazy.num_computed_tokens == 0


def test_requests_behind_the_cursor_keep_their_turn_when_a_victim_comes_before_it():
    scheduler = priority_scheduler(num_blocks=11, max_model_len=40)
    lazy = add(scheduler, 11, priority=9, max_tokens=12)
    step(scheduler)
    urgent = add(scheduler, 12, priority=0, max_tokens=12)
    last = add(scheduler, 9, priority=1, max_tokens=3)
    step(scheduler)
    assert scheduler.kv_cache.num_free_blocks == 1
    output, _ = step(scheduler)
    assert scheduled(output) == {urgent.request_id: 1, last.request_id: 1}
    assert output.preempted_req_ids == [lazy.request_id]


def test_the_budget_of_an_unwound_victim_goes_to_the_others():
    scheduler = priority_scheduler(num_blocks=8, max_model_len=28, max_num_batched_tokens=10)
    lazy = add(scheduler, 18, priority=9, max_tokens=2)
    step(scheduler)
    step(scheduler)
    assert lazy.num_output_tokens == 1
    urgent = add(scheduler, 20, priority=0, max_tokens=2)
    assert urgent.status is RequestStatus.WAITING
    for _ in range(8):
        output, _ = step(scheduler)
        assert output.total_num_scheduled_tokens == sum(scheduled(output).values()) <= 10
    assert not scheduler.has_requests


def test_what_an_unwound_victim_would_have_written_is_not_found_afterwards():
    scheduler = priority_scheduler(
        num_blocks=13, max_model_len=44, long_prefill_token_threshold=8, reserve_full_isl=False
    )
    # The first row takes two blocks a step, in the fifth the last two; then the second row, which
    # needs its third one, takes the first row's place, but not all that it had just got.
    lazy = add(scheduler, 40, priority=9, max_tokens=2)
    step(scheduler)
    urgent = add(scheduler, 6, priority=0, max_tokens=12)
    for _ in range(3):
        step(scheduler)
    num_computed = lazy.num_computed_tokens
    output, _ = step(scheduler)
    assert scheduled(output) == {urgent.request_id: 1}
    assert output.preempted_req_ids == [lazy.request_id]
    assert scheduler.kv_cache.get_computed_blocks(lazy).num_tokens == num_computed == 32


def test_the_least_urgent_of_those_behind_the_cursor_goes_too():
    scheduler = priority_scheduler(num_blocks=7, max_model_len=24)
    urgent = add(scheduler, 11, priority=0, max_tokens=12)
    lazy = add(scheduler, 11, priority=1, max_tokens=12)
    for _ in range(3):
        output, _ = step(scheduler)
    assert output.preempted_req_ids == [lazy.request_id]
    assert scheduled(output) == {urgent.request_id: 1}


def test_a_preempted_request_waits_behind_a_more_urgent_new_one():
    scheduler = priority_scheduler(num_blocks=7, max_model_len=24)
    add(scheduler, 11, priority=0, max_tokens=12)
    lazy = add(scheduler, 11, priority=9, max_tokens=12)
    for _ in range(3):
        step(scheduler)
    assert lazy.status is RequestStatus.PREEMPTED
    urgent = add(scheduler, 11, priority=1, max_tokens=4)
    order = []
    while scheduler.has_requests:
        output, _ = step(scheduler)
        order += [new.request_id for new in output.scheduled_new_reqs]
    assert order.index(urgent.request_id) < order.index(lazy.request_id)
