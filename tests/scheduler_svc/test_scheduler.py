from tests.scheduler_svc.factories import (
    add,
    make_scheduler,
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
