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


def ids(requests):
    return [request.request_id for request in requests]


# Batching.


def test_a_prompt_is_computed_whole_and_then_token_by_token():
    scheduler = make_scheduler()
    request = add(scheduler, 10)
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 10}
    output, _ = step(scheduler)
    assert scheduled(output) == {request.request_id: 1}


def test_computed_tokens_advance_when_the_step_is_planned():
    scheduler = make_scheduler()
    request = add(scheduler, 10)
    scheduler.schedule(0.0)
    assert request.num_computed_tokens == 10


def test_a_prompt_is_cut_at_the_token_budget_and_samples_only_at_its_end():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    request = add(scheduler, 20)
    for num_tokens in (8, 8):
        output, outputs = step(scheduler)
        assert scheduled(output) == {request.request_id: num_tokens}
        assert not outputs or not outputs[0].request_ids
    output, outputs = step(scheduler)
    assert scheduled(output) == {request.request_id: 4}
    assert outputs[0].request_ids == [request.request_id]


def test_running_requests_go_before_waiting_ones():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    first = add(scheduler, 12)
    step(scheduler)
    second = add(scheduler, 12)
    output, _ = step(scheduler)
    assert scheduled(output) == {first.request_id: 4, second.request_id: 4}


def test_a_step_never_exceeds_the_token_budget():
    scheduler = make_scheduler(max_num_batched_tokens=16)
    for _ in range(5):
        add(scheduler, 9)
    output, _ = step(scheduler)
    assert output.total_num_scheduled_tokens == 16 == sum(output.num_scheduled_tokens)


def test_no_more_than_max_num_seqs_run():
    scheduler = make_scheduler(max_num_seqs=2)
    for _ in range(3):
        add(scheduler, 4)
    step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_the_head_of_the_queue_is_not_skipped_for_a_smaller_request():
    scheduler = make_scheduler(num_blocks=9, max_model_len=32)
    add(scheduler, 20)
    step(scheduler)
    large, small = add(scheduler, 20), add(scheduler, 3)
    output, _ = step(scheduler)
    assert large.request_id not in scheduled(output)
    assert small.request_id not in scheduled(output)


def test_a_long_prefill_is_capped_by_its_threshold():
    scheduler = make_scheduler(long_prefill_token_threshold=6)
    long, short = add(scheduler, 20), add(scheduler, 5)
    output, _ = step(scheduler)
    assert scheduled(output) == {long.request_id: 6, short.request_id: 5}


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget():
    scheduler = make_scheduler(
        enable_chunked_prefill=False, max_num_batched_tokens=32, max_model_len=32
    )
    first, second = add(scheduler, 20), add(scheduler, 20)
    output, _ = step(scheduler)
    assert scheduled(output) == {first.request_id: 20}
    output, _ = step(scheduler)
    assert scheduled(output) == {first.request_id: 1, second.request_id: 20}


def test_a_request_is_admitted_only_if_its_whole_prompt_fits_now():
    options = {"num_blocks": 9, "max_model_len": 32, "max_num_batched_tokens": 8}
    gated, ungated = make_scheduler(**options), make_scheduler(reserve_full_isl=False, **options)
    for scheduler, expected in ((gated, 1), (ungated, 2)):
        add(scheduler, 7)
        add(scheduler, 28, max_tokens=2)
        step(scheduler)
        assert (scheduler.num_running, scheduler.num_waiting) == (expected, 2 - expected)


def test_the_watermark_holds_back_admissions_beside_others_only():
    scheduler = make_scheduler(num_blocks=11, watermark=0.5, max_model_len=40)
    add(scheduler, 30)
    step(scheduler)
    assert scheduler.num_running == 1
    add(scheduler, 4)
    step(scheduler)
    assert scheduler.num_waiting == 1


# What the worker hears.


def test_a_new_request_is_sent_in_full_once_and_then_as_changes():
    scheduler = make_scheduler()
    request = add(scheduler, 7)
    output, _ = step(scheduler)
    (new,) = output.scheduled_new_reqs
    assert (new.prompt_token_ids, list(new.output_token_ids), list(new.block_ids)) == (
        request.all_token_ids[:7],
        [],
        [1, 2],
    )
    assert not output.scheduled_cached_reqs.request_ids
    output, _ = step(scheduler)
    assert not output.scheduled_new_reqs
    assert output.scheduled_cached_reqs.request_ids == [request.request_id]
    assert [list(ids) for ids in output.scheduled_cached_reqs.new_block_ids] == [[]]
    output, _ = step(scheduler)
    assert [list(ids) for ids in output.scheduled_cached_reqs.new_block_ids] == [[3]]


def test_rows_are_first_the_known_requests_and_then_the_new_ones():
    scheduler = make_scheduler()
    first = add(scheduler, 4)
    step(scheduler)
    second = add(scheduler, 4)
    output, _ = step(scheduler)
    assert ids(output.requests) == [first.request_id, second.request_id]


def test_a_finished_request_is_named_in_the_next_step():
    scheduler = make_scheduler()
    request = add(scheduler, 4, max_tokens=1)
    output, _ = step(scheduler)
    assert output.finished_req_ids == []
    assert scheduler.has_work
    output, _ = step(scheduler)
    assert output.finished_req_ids == [request.request_id]
    assert not scheduler.has_work


def test_a_request_that_never_ran_is_not_named_to_the_worker():
    scheduler = make_scheduler()
    request = add(scheduler, 4)
    scheduler.finish_requests([request.request_id])
    assert not scheduler.has_work


# Preemption.


def crowded(num_blocks=7, **options):
    """Two requests that fill a pool of six blocks of four tokens."""
    scheduler = make_scheduler(num_blocks=num_blocks, max_model_len=24, **options)
    first = add(scheduler, 11, max_tokens=12)
    second = add(scheduler, 11, max_tokens=12)
    return scheduler, first, second


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
