"""Drafts in the scheduler: who gets them, what they cost, what a verification changes."""

import pytest

from pagewire.sampling_params import SamplingParams
from scheduler_svc.drafter import NgramDrafter
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.output import ModelRunnerOutput, RowError
from scheduler_svc.request import RequestStatus
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.speculation import can_verify
from scheduler_svc.stop import FinishReason
from tests.scheduler_svc.drafters import KnowingDrafter
from tests.scheduler_svc.factories import EOS, add, make_limits, scheduled, step
from tests.scheduler_svc.sim_model import SimModel, expected_output

REPEATING = [1, 2, 3, 4, 1, 2, 3]


def make(drafter=None, **limits):
    return Scheduler(make_limits(**limits), drafter=drafter or NgramDrafter(3, 2, 4))


def prefilled(scheduler, prompt=REPEATING, first=4, **overrides):
    request = add(scheduler, prompt, **overrides)
    step(scheduler, lambda request: first)
    return request


def answer(scheduler, output, *rows, errors=None):
    result = ModelRunnerOutput(output.step, rows, errors=errors or {})
    outputs = scheduler.update_from_output(output, result)
    scheduler.check_integrity()
    return outputs


def test_a_decoding_request_gets_drafts_and_a_prefill_none():
    scheduler = make()
    request = add(scheduler, REPEATING)
    output, _ = step(scheduler, lambda request: 4)
    assert not output.drafts
    output = scheduler.schedule(0.0)
    assert output.drafts == {request.request_id: [1, 2, 3]}
    assert scheduled(output) == {request.request_id: 4}


def test_right_drafts_and_the_token_behind_them_are_new_tokens():
    scheduler = make()
    request = prefilled(scheduler)
    outputs = answer(scheduler, scheduler.schedule(0.0), [1, 2, 3, 9])
    assert outputs[0].new_token_ids == [[1, 2, 3, 9]]
    assert request.output_token_ids == [4, 1, 2, 3, 9]
    assert request.num_computed_tokens == request.num_tokens - 1
    assert scheduler.make_stats().num_accepted_tokens == 3
    assert scheduler.make_stats().num_accepted_tokens_per_pos == (1, 1, 1)


def test_wrong_drafts_are_not_computed_any_more():
    scheduler = make()
    request = prefilled(scheduler)
    output = scheduler.schedule(0.0)
    assert request.num_computed_tokens == request.num_tokens + 3
    answer(scheduler, output, [1, 7])
    assert request.output_token_ids == [4, 1, 7]
    assert request.num_computed_tokens == request.num_tokens - 1
    stats = scheduler.make_stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 1)
    assert stats.num_accepted_tokens_per_pos == (1,)


def test_a_drafted_request_is_in_one_step_while_others_overlap():
    scheduler = make()
    drafted, other = add(scheduler, REPEATING), add(scheduler, [5, 6, 7, 8])
    step(scheduler, lambda request: 4)
    first = scheduler.schedule(0.0)
    assert first.drafts.keys() == {drafted.request_id}
    assert scheduled(first) == {drafted.request_id: 4, other.request_id: 1}
    second = scheduler.schedule(0.0)
    assert scheduled(second) == {other.request_id: 1}


def test_a_request_whose_token_is_under_way_waits_if_guesses_reach_behind_it():
    scheduler = make()
    request = add(scheduler, REPEATING[:-1])
    first = scheduler.schedule(0.0)
    # Its next token is not known, and nothing is known that it repeats: it overlaps.
    scheduler.kv_cache.check_integrity()
    second = scheduler.schedule(0.0)
    assert second.is_empty
    answer(scheduler, first, [3])
    third = scheduler.schedule(0.0)
    assert third.drafts == {request.request_id: [4, 1, 2]}


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_drafts_that_have_become_few_go_on_under_overlap(max_in_flight):
    # Half of the guesses are wrong, so one at a time is worth it now and then, in any case.
    scheduler = make(KnowingDrafter(4, 50), max_model_len=600, num_blocks=400)
    model = SimModel(400, scheduler.limits.block_size)
    request = add(scheduler, [3, 1, 4, 1, 5], max_tokens=400, ignore_eos=True)
    in_flight = []
    while scheduler.has_requests:
        while len(in_flight) < max_in_flight and not (output := scheduler.schedule(0.0)).is_empty:
            in_flight.append(output)
        output = in_flight.pop(0)
        scheduler.update_from_output(output, model.execute(output))
    assert request.output_token_ids == expected_output([3, 1, 4, 1, 5], 400)
    assert scheduler.make_stats().num_drafts > 10


def test_drafts_of_some_leave_every_other_request_its_token():
    scheduler = make(KnowingDrafter(7, 100), max_num_batched_tokens=16, max_num_seqs=8)
    model = SimModel(101, 4)
    requests = [add(scheduler, [number, 2], max_tokens=60, ignore_eos=True) for number in range(8)]
    while scheduler.has_requests:
        before = [request.num_output_tokens for request in requests]
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, model.execute(output))
        for request, num_before in zip(requests, before, strict=True):
            assert request.status.is_finished or request.num_output_tokens > num_before
    assert scheduler.make_stats().num_accepted_tokens > 50


def test_drafts_leave_half_of_a_step_for_prompts():
    scheduler = make(KnowingDrafter(16, 100), max_num_batched_tokens=16, max_num_seqs=4)
    model = SimModel(101, 4)
    add(scheduler, [1, 2], max_tokens=90, ignore_eos=True)
    for _ in range(2):
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, model.execute(output))
    other = add(scheduler, 14, max_tokens=3)
    for _ in range(2):
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, model.execute(output))
    assert other.num_output_tokens > 0


def test_a_request_without_guesses_overlaps():
    scheduler = make()
    request = add(scheduler, [5, 6, 7, 8])
    scheduler.schedule(0.0)
    assert scheduled(scheduler.schedule(0.0)) == {request.request_id: 1}


def test_drafts_stay_within_max_tokens():
    scheduler = make()
    request = prefilled(scheduler, max_tokens=3)
    output = scheduler.schedule(0.0)
    assert output.drafts == {request.request_id: [1]}
    outputs = answer(scheduler, output, [1, 2])
    assert outputs[0].finished[0].reason is FinishReason.LENGTH
    scheduler = make()
    prefilled(scheduler, max_tokens=2)
    assert not scheduler.schedule(0.0).drafts


def test_drafts_stay_within_the_context():
    scheduler = make(max_model_len=len(REPEATING) + 3)
    request = prefilled(scheduler, max_tokens=None)
    assert scheduler.schedule(0.0).drafts == {request.request_id: [1]}


def test_drafts_stay_within_the_steps_budget():
    scheduler = make(max_num_batched_tokens=7, max_num_seqs=4)
    request = add(scheduler, REPEATING)
    step(scheduler, lambda request: 4)
    others = [add(scheduler, 3) for _ in range(2)]
    output = scheduler.schedule(0.0)
    assert scheduled(output) == {request.request_id: 4, others[0].request_id: 3}
    scheduler = make(max_num_batched_tokens=2, max_num_seqs=1)
    add(scheduler, REPEATING)
    for _ in range(4):
        step(scheduler, lambda request: 4)
    assert sum(scheduler.schedule(0.0).num_scheduled_tokens) == 2


def test_a_chunk_of_one_token_is_no_place_for_drafts():
    scheduler = make(long_prefill_token_threshold=1)
    add(scheduler, [*REPEATING, 4])
    for _ in range(7):
        output, _ = step(scheduler)
        assert not output.drafts


def test_drafts_preempt_nobody():
    # Four blocks of four: seven tokens and eight take two each; drafts would need a fifth.
    scheduler = make(num_blocks=5)
    request = add(scheduler, REPEATING, max_tokens=8)
    other = add(scheduler, [5, 6, 7, 8, 9], max_tokens=3)
    step(scheduler, lambda request: 4)
    output = scheduler.schedule(0.0)
    assert not output.drafts
    assert scheduled(output) == {request.request_id: 1, other.request_id: 1}
    assert not output.preempted_req_ids


def test_an_end_among_right_drafts_ends_the_output_there():
    scheduler = make()
    request = prefilled(scheduler, [1, 2, EOS, 1], first=2, max_tokens=8)
    output = scheduler.schedule(0.0)
    assert output.drafts == {request.request_id: [EOS, 1, 2]}
    outputs = answer(scheduler, output, [EOS, 1, 2, 9])
    assert outputs[0].new_token_ids == [[EOS]]
    assert outputs[0].finished[0].reason is FinishReason.STOP
    assert scheduler.make_stats().kv_cache_usage == 0


def test_logprobs_of_tokens_behind_an_end_are_dropped_with_them():
    scheduler = make()
    prefilled(scheduler, [1, 2, EOS, 1], first=2, max_tokens=8, logprobs=1)
    output = scheduler.schedule(0.0)
    rows = LogprobRows([-1.0, -2.0], [1, 2], [1, 2], [5, 6, 7], [-1.0, -2.0, -3.0])
    result = ModelRunnerOutput(output.step, [[EOS, 9]], logprobs={0: rows})
    outputs = scheduler.update_from_output(output, result)
    assert outputs[0].logprobs == {0: LogprobRows([-1.0], [1], [1], [5], [-1.0])}


def test_a_row_that_fails_behind_right_drafts_delivers_them_first():
    scheduler = make()
    request = prefilled(scheduler)
    error = RowError("NAN_LOGITS", "no number")
    outputs = answer(scheduler, scheduler.schedule(0.0), [1, 2], errors={0: error})
    assert outputs[0].new_token_ids == [[1, 2]]
    assert outputs[0].finished[0].error_reason == "NAN_LOGITS"
    assert request.status is RequestStatus.FINISHED_ERROR


def test_a_preempted_request_keeps_what_its_verification_gave():
    scheduler = make()
    request = prefilled(scheduler)
    output = scheduler.schedule(0.0)
    scheduler.preempt_all()
    answer(scheduler, output, [1, 2, 8])
    assert request.output_token_ids == [4, 1, 2, 8]
    assert request.num_computed_tokens == 0
    new = scheduler.schedule(0.0).scheduled_new_reqs[0]
    assert list(new.output_token_ids) == [4, 1, 2, 8]


def test_an_abort_of_a_drafted_request_frees_its_blocks():
    scheduler = make()
    request = prefilled(scheduler)
    output = scheduler.schedule(0.0)
    scheduler.finish_requests([request.request_id])
    assert not answer(scheduler, output, [1, 2, 3, 4])
    assert scheduler.make_stats().kv_cache_usage == 0


def test_drafts_are_never_findable_by_their_hash():
    scheduler = make()
    prefilled(scheduler)
    output = scheduler.schedule(0.0)
    # With its three drafts the request fills two blocks and three more slots.
    other = add(scheduler, [*REPEATING, 4, 1, 2, 3, 4, 5])
    step(scheduler)
    assert other.num_cached_tokens == 8
    answer(scheduler, output, [7])


def test_a_row_that_is_unwound_takes_its_drafts_with_it():
    scheduler = make(policy="priority", num_blocks=7, max_num_batched_tokens=32)
    victim = add(scheduler, REPEATING, priority=1, max_tokens=9)
    step(scheduler, lambda request: 4)
    urgent = add(scheduler, 12, priority=0, max_tokens=9)
    step(scheduler, lambda request: 1)
    for _ in range(8):
        output, _ = step(scheduler, lambda request: 5)
        if victim.request_id in output.preempted_req_ids:
            assert victim.request_id not in output.drafts
            assert urgent.request_id in scheduled(output)
            return
    pytest.fail("nobody was preempted")


def test_settings_that_a_verification_cannot_honour_are_not_drafted_for():
    assert can_verify(SamplingParams(repetition_penalty=1.2, min_tokens=3, logprobs=2))
    assert not can_verify(SamplingParams(prompt_logprobs=1))
    scheduler = make()
    prefilled(scheduler, prompt_logprobs=1)
    assert not scheduler.schedule(0.0).drafts


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("percent_right", [0, 50, 100])
def test_outputs_are_the_same_with_drafts_and_take_fewer_steps(max_in_flight, percent_right):
    prompt, max_tokens = [3, 1, 4, 1, 5], 40
    scheduler = make(KnowingDrafter(4, percent_right), eos_token_ids=frozenset())
    model = SimModel(scheduler.limits.num_blocks, scheduler.limits.block_size)
    request = add(scheduler, prompt, max_tokens=max_tokens)
    in_flight = []
    num_steps = 0
    while scheduler.has_requests:
        while len(in_flight) < max_in_flight and not (output := scheduler.schedule(0.0)).is_empty:
            in_flight.append(output)
        output = in_flight.pop(0)
        num_steps += 1
        scheduler.update_from_output(output, model.execute(output))
        scheduler.check_integrity()
    assert request.output_token_ids == expected_output(prompt, max_tokens)
    stats = scheduler.make_stats()
    assert stats.num_draft_tokens > 0
    assert (stats.num_accepted_tokens > 0) == (percent_right > 0)
    # Each accepted draft is a step that was not needed.
    assert num_steps == max_tokens - stats.num_accepted_tokens
