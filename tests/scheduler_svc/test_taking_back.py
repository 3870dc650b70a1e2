"""Failed steps, failed rows and resets: what is in doubt is not found, not delivered, not lost."""

import pytest

from scheduler_svc.output import ModelRunnerOutput, RowError
from scheduler_svc.request import RequestStatus
from tests.scheduler_svc.factories import add, make_scheduler, scheduled, step

SHARED = list(range(100, 112))


def hit_tokens(scheduler, request):
    return scheduler.kv_cache.get_computed_blocks(request).num_tokens


def run_to_the_end(scheduler):
    while scheduler.has_requests:
        step(scheduler)


def test_a_failed_step_is_computed_again():
    scheduler = make_scheduler()
    request = add(scheduler, 10, max_tokens=2)
    failed = scheduler.schedule(1.0)
    assert scheduler.take_back_steps([failed]) == 1
    scheduler.check_integrity()
    assert request.status is RequestStatus.PREEMPTED
    output, outputs = step(scheduler)
    assert scheduled(output) == {request.request_id: 10}
    assert [item.request_id for item in outputs[0].scheduled] == [request.request_id]
    run_to_the_end(scheduler)
    assert request.num_output_tokens == 2


def test_what_a_failed_step_cached_is_not_found():
    scheduler = make_scheduler()
    done = add(scheduler, SHARED, max_tokens=1)
    step(scheduler)
    request = add(scheduler, [*SHARED, *range(200, 212)])
    failed = scheduler.schedule(1.0)
    assert request.num_cached_tokens == 12
    scheduler.take_back_steps([failed])
    # What was computed before the failure stays.
    assert hit_tokens(scheduler, request) == 12
    assert done.status.is_finished


def test_a_later_sharer_of_a_failed_steps_blocks_is_preempted_too():
    scheduler = make_scheduler()
    first = add(scheduler, SHARED)
    failed = scheduler.schedule(1.0)
    sharer = add(scheduler, [*SHARED, 1, 2])
    later = scheduler.schedule(1.0)
    assert sharer.num_cached_tokens == 12
    assert scheduler.take_back_steps([failed, later]) == 2
    scheduler.check_integrity()
    assert hit_tokens(scheduler, sharer) == 0
    output, _ = step(scheduler)
    assert list(scheduled(output)) == [first.request_id, sharer.request_id]


def test_a_request_with_nothing_in_a_failed_step_runs_on():
    scheduler = make_scheduler()
    request = add(scheduler, 4, max_tokens=2)
    step(scheduler)
    good = scheduler.schedule(1.0)  # draws its last token
    other = add(scheduler, 4)
    failed = scheduler.schedule(1.0)
    assert list(scheduled(failed)) == [other.request_id]
    assert scheduler.take_back_steps([failed]) == 1
    assert request.status is RequestStatus.RUNNING
    scheduler.update_from_output(good, ModelRunnerOutput(good.step, [[5]]))
    assert request.output_token_ids == [1, 5]
    scheduler.check_integrity()


def test_a_request_that_ended_since_a_failed_step_stays_ended():
    scheduler = make_scheduler()
    request = add(scheduler, 4)
    failed = scheduler.schedule(1.0)
    scheduler.finish_requests([request.request_id])
    assert scheduler.take_back_steps([failed]) == 0
    assert not scheduler.has_requests
    scheduler.check_integrity()


def test_what_a_failed_row_cached_is_not_found():
    scheduler = make_scheduler()
    add(scheduler, SHARED)
    output = scheduler.schedule(1.0)
    scheduler.update_from_output(
        output, ModelRunnerOutput(1, [[]], errors={0: RowError("NAN_LOGITS", "not a number")})
    )
    assert hit_tokens(scheduler, add(scheduler, [*SHARED, 1])) == 0
    scheduler.check_integrity()


def test_what_a_request_cached_before_its_row_failed_stays():
    scheduler = make_scheduler()
    request = add(scheduler, SHARED)
    step(scheduler)
    output = scheduler.schedule(1.0)
    result = ModelRunnerOutput(
        output.step, [[]], errors={0: RowError("NAN_LOGITS", "not a number")}
    )
    scheduler.update_from_output(output, result)
    assert request.status is RequestStatus.FINISHED_ERROR
    assert hit_tokens(scheduler, add(scheduler, [*SHARED, 1])) == 12


# Reset.


def test_a_reset_does_nothing_while_requests_hold_blocks():
    scheduler = make_scheduler()
    add(scheduler, SHARED, max_tokens=1)
    step(scheduler)
    add(scheduler, [*SHARED, 1])
    step(scheduler)
    assert not scheduler.reset_prefix_cache(reset_running_requests=False)
    assert hit_tokens(scheduler, add(scheduler, [*SHARED, 2])) == 12


def test_a_reset_that_preempts_forgets_everything():
    scheduler = make_scheduler()
    request = add(scheduler, SHARED)
    step(scheduler)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert hit_tokens(scheduler, request) == 0
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 13}


def test_tokens_under_way_at_a_reset_are_dropped_and_drawn_again():
    scheduler = make_scheduler()
    request = add(scheduler, 5, max_tokens=2)
    output = scheduler.schedule(1.0)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(1, [[7]]))
    assert not outputs[0].request_ids
    assert request.output_token_ids == []
    scheduler.check_integrity()
    output, outputs = step(scheduler)
    assert outputs[0].new_token_ids == [[1]]
    run_to_the_end(scheduler)
    assert request.output_token_ids == [1, 1]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_reset_keeps_the_order_of_requests(policy):
    scheduler = make_scheduler(policy=policy)
    requests = [add(scheduler, 5) for _ in range(4)]
    step(scheduler)
    scheduler.reset_prefix_cache(reset_running_requests=True)
    output, _ = step(scheduler)
    assert [r.request_id for r in output.requests] == [r.request_id for r in requests]
