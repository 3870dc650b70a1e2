"""What a pause stops in the scheduler."""

import pytest

from scheduler_svc.pause import PauseMode, PauseState
from tests.scheduler_svc.factories import add, make_scheduler, sample, scheduled, step


def test_nothing_is_admitted_while_new_requests_are_paused():
    scheduler = make_scheduler()
    running = add(scheduler, 4)
    step(scheduler)
    scheduler.pause_state = PauseState.PAUSED_NEW
    waiting = add(scheduler, 4)
    output, _ = step(scheduler)
    assert scheduled(output) == {running.request_id: 1}
    scheduler.pause_state = PauseState.UNPAUSED
    output, _ = step(scheduler)
    assert scheduled(output) == {running.request_id: 1, waiting.request_id: 4}


def test_a_request_preempted_in_a_pause_waits_for_its_end():
    scheduler = make_scheduler(num_blocks=7, max_model_len=24)
    first = add(scheduler, 11, max_tokens=12)
    second = add(scheduler, 11, max_tokens=12)
    step(scheduler)
    scheduler.pause_state = PauseState.PAUSED_NEW
    while scheduler.can_schedule:
        step(scheduler)
    assert (first.status.is_finished, second.status.is_finished) == (True, False)
    assert second.num_preemptions == 1
    scheduler.pause_state = PauseState.UNPAUSED
    while scheduler.has_requests:
        step(scheduler)
    assert second.num_output_tokens == 12


def test_no_token_is_scheduled_while_all_is_paused():
    scheduler = make_scheduler()
    request = add(scheduler, 4)
    step(scheduler)
    scheduler.pause_state = PauseState.PAUSED_ALL
    output = scheduler.schedule(1.0)
    assert output.is_empty
    assert not scheduler.has_work
    scheduler.pause_state = PauseState.UNPAUSED
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 1}


def test_a_step_under_way_at_the_pause_is_taken_in():
    scheduler = make_scheduler()
    request = add(scheduler, 4)
    output = scheduler.schedule(1.0)
    scheduler.pause_state = PauseState.PAUSED_ALL
    scheduler.update_from_output(output, sample(output))
    assert request.num_output_tokens == 1
    scheduler.check_integrity()


def test_the_worker_hears_of_aborts_in_a_pause():
    scheduler = make_scheduler()
    request = add(scheduler, 4)
    step(scheduler)
    scheduler.pause_state = PauseState.PAUSED_ALL
    scheduler.finish_requests([request.request_id])
    assert scheduler.has_work
    assert scheduler.schedule(1.0).finished_req_ids == [request.request_id]
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (PauseMode.ABORT, PauseState.PAUSED_NEW),
        (PauseMode.WAIT, PauseState.PAUSED_NEW),
        (PauseMode.KEEP, PauseState.PAUSED_ALL),
    ],
)
def test_only_keep_stops_running_requests(mode, state):
    assert mode.state is state
