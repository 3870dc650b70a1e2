import pytest

from pagewire.kit.errors import AlreadyExistsError, InvalidRequestError, QueueFullError
from scheduler_svc.output import ModelRunnerOutput, RowError
from scheduler_svc.request import RequestStatus
from scheduler_svc.stop import FinishReason, Stop
from tests.scheduler_svc.factories import (
    EOS,
    add,
    make_core_request,
    make_scheduler,
    sample,
    scheduled,
    step,
)


def run(scheduler, next_token=lambda request: 1):
    ends = []
    while scheduler.has_requests:
        _, outputs = step(scheduler, next_token)
        ends += [end for client in outputs.values() for end in client.finished]
    return ends


def ids(requests):
    return [request.request_id for request in requests]


def test_a_request_ends_after_max_tokens():
    scheduler = make_scheduler()
    add(scheduler, 5, max_tokens=3)
    (end,) = run(scheduler)
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == (FinishReason.LENGTH, 5, 3)
    assert scheduler.make_stats().kv_cache_usage == 0


def test_a_request_ends_at_the_context_length():
    scheduler = make_scheduler(max_model_len=8)
    add(scheduler, 5, max_tokens=None)
    (end,) = run(scheduler)
    assert (end.reason, end.num_output_tokens) == (FinishReason.LENGTH, 3)


def test_a_request_ends_at_end_of_sequence():
    scheduler = make_scheduler()
    add(scheduler, 5)
    (end,) = run(scheduler, lambda request: EOS)
    assert (end.reason, end.eos_token_id, end.num_output_tokens) == (FinishReason.STOP, EOS, 1)


def test_several_tokens_of_a_step_are_cut_at_the_first_that_ends_the_output():
    scheduler = make_scheduler()
    request = add(scheduler, 5)
    output = scheduler.schedule(0.0)
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(1, [[7, EOS, 8]]))
    assert outputs[0].new_token_ids == [[7, EOS]]
    assert request.output_token_ids == [7, EOS]


def test_outputs_are_grouped_by_client():
    scheduler = make_scheduler()
    first, second = add(scheduler, 5, client_id=1), add(scheduler, 5, client_id=2)
    _, outputs = step(scheduler)
    assert outputs[1].request_ids == [first.request_id]
    assert outputs[2].request_ids == [second.request_id]


def test_an_abort_frees_blocks_at_once():
    scheduler = make_scheduler()
    running = add(scheduler, 9)
    step(scheduler)
    ended = scheduler.finish_requests([running.request_id])
    assert ended[0][0].reason is FinishReason.ABORT
    assert scheduler.make_stats().kv_cache_usage == 0
    scheduler.check_integrity()


def test_an_abort_can_count_as_a_stop():
    scheduler = make_scheduler()
    request = add(scheduler, 9)
    scheduler.finish_requests([request.request_id], Stop(FinishReason.STOP))
    assert request.status is RequestStatus.FINISHED_STOPPED


def test_an_abort_of_an_unknown_request_does_nothing():
    assert make_scheduler().finish_requests(["nobody"]) == {}


def test_all_requests_can_be_ended_together():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, 5, client_id=1)
    add(scheduler, 5, client_id=2)
    step(scheduler)
    assert sorted(scheduler.finish_requests(None)) == [1, 2]
    assert not scheduler.has_requests


def test_an_abort_between_execution_and_update_wins_over_completion():
    scheduler = make_scheduler()
    request = add(scheduler, 5, max_tokens=1)
    output = scheduler.schedule(0.0)
    result = sample(output)
    scheduler.finish_requests([request.request_id])
    assert scheduler.update_from_output(output, result) == {}
    assert request.status is RequestStatus.FINISHED_ABORTED


def test_late_tokens_do_not_reach_a_new_request_with_the_same_id():
    scheduler = make_scheduler()
    add(scheduler, 5, request_id="a")
    output = scheduler.schedule(0.0)
    result = sample(output)
    scheduler.finish_requests(["a"])
    again = add(scheduler, 5, request_id="a")
    scheduler.update_from_output(output, result)
    assert again.num_output_tokens == 0


def test_tokens_in_flight_at_a_preemption_are_delivered():
    scheduler = make_scheduler()
    request = add(scheduler, 5)
    output = scheduler.schedule(0.0)
    scheduler.preempt_all()
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(1, [[7]]))
    assert outputs[0].new_token_ids == [[7]]
    assert request.output_token_ids == [7]
    scheduler.check_integrity()


def test_a_request_can_end_by_a_token_that_was_in_flight_at_its_preemption():
    scheduler = make_scheduler()
    add(scheduler, 5, max_tokens=1)
    output = scheduler.schedule(0.0)
    scheduler.preempt_all()
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(1, [[7]]))
    assert outputs[0].finished[0].reason is FinishReason.LENGTH
    assert not scheduler.has_requests
    scheduler.check_integrity()


def test_a_row_that_failed_ends_its_request_only():
    scheduler = make_scheduler()
    bad, good = add(scheduler, 5), add(scheduler, 5)
    output = scheduler.schedule(0.0)
    outputs = scheduler.update_from_output(
        output, ModelRunnerOutput(1, [[], [7]], errors={0: RowError("NAN_LOGITS", "not a number")})
    )
    (end,) = outputs[0].finished
    assert (end.request_id, end.reason, end.message) == (
        bad.request_id,
        FinishReason.ERROR,
        "not a number",
    )
    assert good.output_token_ids == [7]
    scheduler.check_integrity()


def test_a_worker_that_draws_nothing_does_not_hang_a_request():
    scheduler = make_scheduler()
    add(scheduler, 5)
    output = scheduler.schedule(0.0)
    outputs = scheduler.update_from_output(output, ModelRunnerOutput(1, [[]]))
    assert outputs[0].finished[0].reason is FinishReason.ERROR


def test_the_time_in_the_queue_is_reported_at_the_first_step():
    scheduler = make_scheduler()
    scheduler.add_request(make_core_request(5), now_s=10.0)
    output = scheduler.schedule(now_s=12.5)
    outputs = scheduler.update_from_output(output, sample(output))
    assert outputs[0].scheduled[0].queued_time_s == 2.5


# Admission.


def test_a_live_id_cannot_be_added_twice():
    scheduler = make_scheduler()
    add(scheduler, 5, request_id="a")
    with pytest.raises(AlreadyExistsError):
        add(scheduler, 5, request_id="a")


def test_a_refused_request_leaves_no_trace():
    scheduler = make_scheduler()
    with pytest.raises(InvalidRequestError):
        add(scheduler, [], request_id="a")
    add(scheduler, 5, request_id="a")


def test_a_full_queue_refuses_new_requests_but_not_resumed_ones():
    scheduler = make_scheduler(max_num_queued_requests=1)
    add(scheduler, 5)
    with pytest.raises(QueueFullError):
        add(scheduler, 5)
    resumed = add(scheduler, 5, is_resumed=True)
    output, _ = step(scheduler)
    assert ids(output.requests)[0] == resumed.request_id


def test_a_resumed_request_goes_on_where_it_was():
    scheduler = make_scheduler()
    request = add(scheduler, [1, 2, 3], output_token_ids=[4, 5], is_resumed=True, max_tokens=4)
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 5}
    assert list(output.scheduled_new_reqs[0].output_token_ids) == [4, 5]
    (end,) = run(scheduler)
    assert end.num_output_tokens == 4
