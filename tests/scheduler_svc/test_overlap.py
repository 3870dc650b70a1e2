"""Steps planned before the tokens of the step before are known."""

import pytest

from scheduler_svc.output import ModelRunnerOutput, RowError
from scheduler_svc.request import RequestStatus
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.factories import EOS, add, make_scheduler, sample, scheduled, step


def answer(scheduler, output, token_id=1):
    outputs = scheduler.update_from_output(output, sample(output, lambda request: token_id))
    scheduler.check_integrity()
    return outputs


def finish_reasons(outputs):
    return [end.reason for client in outputs.values() for end in client.finished]


def test_a_token_under_way_is_computed_by_the_next_step():
    scheduler = make_scheduler()
    request = add(scheduler, 10)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert scheduled(first) == {request.request_id: 10}
    assert scheduled(second) == {request.request_id: 1}
    assert list(first.draws) == list(second.draws) == [True]
    assert (request.num_computed_tokens, request.num_output_placeholders) == (11, 2)
    answer(scheduler, first, 5)
    answer(scheduler, second, 6)
    assert request.output_token_ids == [5, 6]
    assert request.num_output_placeholders == 0


def test_a_chunk_of_a_prompt_draws_nothing():
    scheduler = make_scheduler(max_num_batched_tokens=6)
    request = add(scheduler, 10)
    first, second, third = (scheduler.schedule(0.0) for _ in range(3))
    assert [list(output.draws) for output in (first, second, third)] == [[False], [True], [True]]
    assert not answer(scheduler, first)[0].request_ids
    answer(scheduler, second)
    assert request.num_output_tokens == 1


def test_no_step_is_planned_past_a_full_output():
    scheduler = make_scheduler()
    request = add(scheduler, 10, max_tokens=2)
    steps = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    assert scheduler.schedule(0.0).is_empty
    assert finish_reasons(answer(scheduler, steps[0])) == []
    assert scheduler.schedule(0.0).is_empty
    assert finish_reasons(answer(scheduler, steps[1])) == [FinishReason.LENGTH]
    assert request.num_output_tokens == 2


def test_no_step_is_planned_past_a_full_context():
    scheduler = make_scheduler(max_model_len=12)
    add(scheduler, 10, max_tokens=None)
    steps = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    assert scheduler.schedule(0.0).is_empty
    answer(scheduler, steps[0])
    assert finish_reasons(answer(scheduler, steps[1])) == [FinishReason.LENGTH]


def test_a_full_context_ends_the_output_before_min_tokens():
    scheduler = make_scheduler(max_model_len=12)
    add(scheduler, 10, max_tokens=9, min_tokens=9)
    steps = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    answer(scheduler, steps[0])
    assert finish_reasons(answer(scheduler, steps[1])) == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    ("params", "token_id"), [({}, EOS), ({"stop_token_ids": [77]}, 77)], ids=["eos", "stop id"]
)
def test_an_end_by_a_token_wastes_one_token(params, token_id):
    scheduler = make_scheduler()
    request = add(scheduler, 10, **params)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert finish_reasons(answer(scheduler, first, token_id)) == [FinishReason.STOP]
    third = scheduler.schedule(0.0)
    assert third.finished_req_ids == [request.request_id]
    assert not third.requests
    assert answer(scheduler, second, 5) == {}
    assert request.output_token_ids == [token_id]
    num_scheduled = sum(sum(scheduled(output).values()) for output in (first, second, third))
    assert num_scheduled == 10 + 1


def test_an_abort_with_two_steps_under_way_wins_over_both():
    scheduler = make_scheduler()
    request = add(scheduler, 10, max_tokens=2)
    steps = [scheduler.schedule(0.0), scheduler.schedule(0.0)]
    scheduler.finish_requests([request.request_id])
    scheduler.check_integrity()
    assert scheduler.make_stats().kv_cache_usage == 0
    assert [answer(scheduler, output) for output in steps] == [{}, {}]
    assert request.status is RequestStatus.FINISHED_ABORTED


def test_a_new_request_may_have_the_id_of_one_that_ended_with_a_step_under_way():
    scheduler = make_scheduler()
    old = add(scheduler, 10, request_id="same")
    late = scheduler.schedule(0.0)
    scheduler.finish_requests(["same"])
    new = add(scheduler, 10, request_id="same")
    output = scheduler.schedule(0.0)
    answer(scheduler, late, 5)
    answer(scheduler, output, 6)
    assert (old.output_token_ids, new.output_token_ids) == ([], [6])


def crowded():
    """Two requests; the step that comes next takes the last block from the second of them."""
    scheduler = make_scheduler(num_blocks=7, max_model_len=24)
    first, second = add(scheduler, 11, max_tokens=12), add(scheduler, 11, max_tokens=12)
    step(scheduler)
    return scheduler, first, second


def test_the_token_under_way_of_a_preempted_request_is_delivered_and_comes_back_with_it():
    scheduler, first, second = crowded()
    under_way = scheduler.schedule(0.0)
    assert set(scheduled(under_way)) == {first.request_id, second.request_id}
    output = scheduler.schedule(0.0)
    assert output.preempted_req_ids == [second.request_id]
    assert second.num_output_placeholders == 1
    outputs = answer(scheduler, under_way, 5)
    assert second.request_id in outputs[0].request_ids
    answer(scheduler, output)
    scheduler.finish_requests([first.request_id])
    (resumed,) = scheduler.schedule(0.0).scheduled_new_reqs
    assert (resumed.request_id, resumed.output_token_ids) == (second.request_id, [1, 5])


def test_a_preempted_request_waits_for_its_tokens_under_way():
    scheduler, first, second = crowded()
    under_way = scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    scheduler.finish_requests([first.request_id])
    assert not scheduler.schedule(0.0).requests
    answer(scheduler, under_way)
    assert list(scheduled(scheduler.schedule(0.0))) == [second.request_id]


def test_the_token_under_way_may_end_a_preempted_request():
    scheduler, _, second = crowded()
    under_way = scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    result = ModelRunnerOutput(under_way.step, [[1], [EOS]])
    outputs = scheduler.update_from_output(under_way, result)
    scheduler.check_integrity()
    assert [end.request_id for end in outputs[0].finished] == [second.request_id]
    assert scheduler.num_waiting == 0
    # The worker has been told that it was preempted; it need not hear more.
    assert scheduler.schedule(0.0).finished_req_ids == []


def test_a_block_with_a_token_under_way_is_not_found():
    scheduler = make_scheduler()
    request = add(scheduler, [1, 2, 3])
    steps = [scheduler.schedule(0.0) for _ in range(2)]
    twin = add(scheduler, [1, 2, 3, 7, 9])
    assert scheduler.kv_cache.get_computed_blocks(twin).num_tokens == 0
    answer(scheduler, steps[0], 7)
    assert request.num_tokens == request.num_computed_tokens == 4
    assert scheduler.kv_cache.get_computed_blocks(twin).num_tokens == 0
    # The next step that has the request makes its full block findable.
    third = scheduler.schedule(0.0)
    assert scheduled(third) == {request.request_id: 1, twin.request_id: 1}


def test_a_lost_worker_takes_the_tokens_under_way_with_it():
    scheduler = make_scheduler()
    request = add(scheduler, 10)
    step(scheduler)
    scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    scheduler.forget_worker()
    scheduler.check_integrity()
    (resumed,) = scheduler.schedule(0.0).scheduled_new_reqs
    assert (resumed.request_id, resumed.output_token_ids) == (request.request_id, [1])


def test_a_row_that_failed_ends_its_request_and_the_next_step_is_ignored():
    scheduler = make_scheduler()
    request = add(scheduler, 10)
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    outputs = scheduler.update_from_output(
        first,
        ModelRunnerOutput(first.step, [[]], errors={0: RowError("NAN_LOGITS", "not a number")}),
    )
    assert finish_reasons(outputs) == [FinishReason.ERROR]
    failed = ModelRunnerOutput(
        second.step, [[]], errors={0: RowError("NAN_LOGITS", "not a number")}
    )
    assert scheduler.update_from_output(second, failed) == {}
    assert request.output_token_ids == []


def test_a_row_may_fail_after_its_request_was_preempted():
    scheduler = make_scheduler(num_blocks=7, max_model_len=24)
    first, second = add(scheduler, 11, max_tokens=12), add(scheduler, 11, max_tokens=12)
    under_way = scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    assert second.status is RequestStatus.PREEMPTED
    assert scheduler.kv_cache.get_computed_blocks(second).num_tokens == 8
    result = ModelRunnerOutput(
        under_way.step, [[1], []], errors={1: RowError("NAN_LOGITS", "not a number")}
    )
    outputs = scheduler.update_from_output(under_way, result)
    scheduler.check_integrity()
    assert finish_reasons(outputs) == [FinishReason.ERROR]
    assert (first.status, scheduler.num_waiting) == (RequestStatus.RUNNING, 0)
    # What the failed row wrote is not found by anybody.
    assert scheduler.kv_cache.get_computed_blocks(second).num_tokens == 0


def test_a_row_that_should_draw_and_does_not_ends_its_request():
    scheduler = make_scheduler()
    add(scheduler, 10)
    first = scheduler.schedule(0.0)
    scheduler.schedule(0.0)
    outputs = scheduler.update_from_output(first, ModelRunnerOutput(first.step, [[]]))
    assert finish_reasons(outputs) == [FinishReason.ERROR]
