"""Requests whose output has a form, in the scheduler: they wait, draw under masks, and end."""

import pytest

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.drafter import NgramDrafter
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.speculation import MAX_DRAFT_MASK_BYTES
from scheduler_svc.stop import FinishReason, Stop
from tests.scheduler_svc.factories import (
    EOS,
    add,
    make_limits,
    make_request,
    make_scheduler,
    scheduled,
    step,
)
from tests.scheduler_svc.grammars import TextGrammar

FORM = StructuredOutputs(regex="a")


def add_formed(scheduler, grammar=None, **overrides):
    """A request with a form; with a grammar it may run at once."""
    request = add(scheduler, structured_outputs=FORM, **overrides)
    if grammar is not None:
        scheduler.set_grammar(request.request_id, grammar)
    return request


def says(*token_ids):
    """A worker that draws the tokens of a text, whatever the request."""
    return lambda request: token_ids[request.num_output_tokens]


def test_a_request_waits_for_its_grammar_and_holds_up_nobody():
    scheduler = make_scheduler(max_num_seqs=1)
    formed, other = add_formed(scheduler), add(scheduler, max_tokens=1)
    output, _ = step(scheduler)
    assert scheduled(output).keys() == {other.request_id}
    stats = scheduler.make_stats()
    assert (stats.num_requests_waiting, stats.num_requests_deferred) == (1, 1)
    scheduler.set_grammar(formed.request_id, TextGrammar([5, 6]))
    output, _ = step(scheduler, says(5, 6))
    assert scheduled(output).keys() == {formed.request_id}


def test_nothing_but_grammars_to_wait_for_is_no_work():
    scheduler = make_scheduler()
    formed = add_formed(scheduler)
    assert scheduler.can_schedule
    assert scheduler.schedule(0.0).is_empty
    assert not scheduler.can_schedule
    assert scheduler.has_requests
    scheduler.set_grammar(formed.request_id, TextGrammar([5]))
    assert scheduler.can_schedule


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_request_comes_back_to_its_place(policy):
    scheduler = make_scheduler(policy=policy, max_num_seqs=1)
    blocker = add(scheduler, max_tokens=2)
    formed, later = add_formed(scheduler), add(scheduler)
    step(scheduler)
    scheduler.finish_requests([blocker.request_id])
    output = scheduler.schedule(0.0)
    assert scheduled(output).keys() == {later.request_id}
    last = add(scheduler)
    scheduler.set_grammar(formed.request_id, TextGrammar([5, 6]))
    scheduler.finish_requests([later.request_id])
    assert scheduled(scheduler.schedule(0.0)).keys() == {formed.request_id}
    assert last.num_computed_tokens == 0


def test_deferred_requests_keep_their_order_behind_what_was_admitted_before():
    scheduler = make_scheduler(max_num_seqs=1)
    running = add(scheduler, max_tokens=8, request_id="running")
    step(scheduler)
    formed = [add_formed(scheduler, request_id=f"f{number}") for number in range(4)]
    add(scheduler, request_id="last", max_tokens=1)
    scheduler.finish_requests([running.request_id])
    step(scheduler)
    for request in (formed[2], formed[0], formed[3], formed[1]):
        scheduler.set_grammar(request.request_id, TextGrammar([5]))
    preempted = add(scheduler, request_id="resumed", is_resumed=True, max_tokens=1)
    order = []
    while scheduler.has_requests:
        output, _ = step(scheduler, lambda request: 5)
        order += [new.request_id for new in output.scheduled_new_reqs]
    assert order == [preempted.request_id, "f0", "f1", "f2", "f3"]


def test_a_request_that_ends_while_its_grammar_is_made_leaves_nothing():
    scheduler = make_scheduler()
    formed = add_formed(scheduler)
    scheduler.schedule(0.0)
    ended = scheduler.finish_requests([formed.request_id])
    assert ended[0][0].reason is FinishReason.ABORT
    scheduler.set_grammar(formed.request_id, TextGrammar([5]))
    assert not scheduler.has_requests
    assert scheduler.make_stats().num_tokens_waiting == 0
    scheduler.check_integrity()


def test_deferred_requests_count_against_the_queue():
    scheduler = make_scheduler(max_num_queued_requests=1)
    add_formed(scheduler)
    scheduler.schedule(0.0)
    with pytest.raises(Exception, match="the queue is full"):
        add(scheduler)


def test_rows_that_draw_under_a_grammar_are_named():
    scheduler = make_scheduler(max_num_batched_tokens=16, max_num_seqs=4)
    plain = add(scheduler, 4)
    short = add_formed(scheduler, TextGrammar([5, 6]), prompt=4)
    long = add_formed(scheduler, TextGrammar([7]), prompt=10)
    output = scheduler.schedule(0.0)
    # The long prompt is cut, so nothing is drawn for it yet.
    assert [output.requests[row] for row in output.masked_rows] == [short]
    assert list(output.draws) == [True, True, False]
    assert plain in output.requests
    assert long in output.requests


def test_masks_are_for_rows_that_have_not_ended():
    scheduler = make_scheduler()
    one, two = (add_formed(scheduler, TextGrammar([5, 6])) for _ in range(2))
    output = scheduler.schedule(0.0)
    scheduler.finish_requests([one.request_id])
    rows = scheduler.rows_to_mask(output)
    assert [output.requests[row] for row in rows] == [two]
    assert rows[1] == (two.grammar, ())


def test_a_complete_grammar_ends_with_stop_even_before_min_tokens():
    scheduler = make_scheduler()
    request = add_formed(scheduler, TextGrammar([5, 6]), max_tokens=20, min_tokens=10)
    step(scheduler, says(5, 6))
    _, outputs = step(scheduler, says(5, 6))
    assert outputs[0].finished[0].reason is FinishReason.STOP
    assert request.output_token_ids == [5, 6]
    assert scheduler.make_stats().kv_cache_usage == 0


def test_a_grammar_that_completes_with_the_last_token_allowed_stops():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([5, 6]), max_tokens=2)
    step(scheduler, says(5, 6))
    _, outputs = step(scheduler, says(5, 6))
    assert outputs[0].finished[0].reason is FinishReason.STOP


def test_a_grammar_that_is_not_complete_ends_by_length():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([5, 6, 7]), max_tokens=2)
    step(scheduler, says(5, 6))
    _, outputs = step(scheduler, says(5, 6))
    assert outputs[0].finished[0].reason is FinishReason.LENGTH


def test_an_eos_that_the_grammar_takes_is_told_as_eos():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([EOS]))
    _, outputs = step(scheduler, says(EOS))
    end = outputs[0].finished[0]
    assert (end.reason, end.eos_token_id) == (FinishReason.STOP, EOS)


def test_an_eos_that_the_request_ignores_still_completes_its_grammar():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([EOS]), ignore_eos=True)
    _, outputs = step(scheduler, says(EOS))
    assert outputs[0].finished[0].reason is FinishReason.STOP


def test_a_token_that_the_grammar_refuses_ends_that_request_alone():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([5]), request_id="formed")
    other = add(scheduler, request_id="other")
    _, outputs = step(scheduler, says(9))
    (end,) = outputs[0].finished
    assert (end.request_id, end.reason) == ("formed", FinishReason.ERROR)
    assert end.error_reason == "GRAMMAR_REFUSED"
    assert "form" in end.error().message
    assert end.num_output_tokens == 0
    assert outputs[0].request_ids == ["other"]
    assert other.num_output_tokens == 1


def test_forced_tokens_are_drafts_without_a_drafter():
    scheduler = make_scheduler()
    request = add_formed(scheduler, TextGrammar([5, 6, 7, 8], is_open=True), max_tokens=9)
    step(scheduler, says(5))
    output = scheduler.schedule(0.0)
    assert output.drafts == {request.request_id: [6, 7, 8]}
    assert scheduler.rows_to_mask(output) == {0: (request.grammar, [6, 7, 8])}


def test_drafts_add_a_bounded_number_of_masks_to_a_step():
    vocab_size = 1_000_000
    most = MAX_DRAFT_MASK_BYTES // (vocab_size // 8)
    scheduler = make_scheduler(
        vocab_size=vocab_size, max_num_seqs=64, max_num_batched_tokens=4096, num_blocks=2000
    )
    for _ in range(64):
        add_formed(scheduler, TextGrammar(range(50)), max_tokens=60)
    step(scheduler, says(*range(50)))
    output = scheduler.schedule(0.0)
    num_drafts = sum(map(len, output.drafts.values()))
    assert most - 1 <= num_drafts <= most
    assert len(output.requests) == 64


def test_guesses_of_the_drafter_stop_where_the_grammar_does():
    scheduler = Scheduler(make_limits(), drafter=NgramDrafter(4, 1, 2))
    grammar = TextGrammar([1, 2, 3, 9])
    grammar.forced_tokens = lambda max_tokens: []
    request = add_formed(scheduler, grammar, prompt=[1, 2, 3, 4, 5])
    step(scheduler, says(1))
    assert scheduler.schedule(0.0).drafts == {request.request_id: [2, 3]}


def test_a_preempted_request_keeps_its_grammar():
    scheduler = make_scheduler()
    grammar = TextGrammar([5, 6, 7])
    request = add_formed(scheduler, grammar)
    step(scheduler, says(5, 6, 7))
    scheduler.preempt_all()
    output, _ = step(scheduler, says(5, 6, 7))
    assert list(output.masked_rows) == [0]
    assert grammar.num_accepted == 2
    assert request.output_token_ids == [5, 6]


def test_the_worker_does_not_get_the_form_itself():
    scheduler = make_scheduler()
    add_formed(scheduler, TextGrammar([5, 6]))
    (new,) = scheduler.schedule(0.0).scheduled_new_reqs
    assert new.sampling_params.structured_outputs is None


@pytest.mark.parametrize(
    ("reason", "error_type"),
    [
        ("INVALID_GRAMMAR", InvalidRequestError),
        ("GRAMMAR_TOO_COMPLEX", InvalidRequestError),
        ("GRAMMAR_MISMATCH", InvalidRequestError),
        ("STRUCTURED_OUTPUTS_NOT_SERVED", InvalidRequestError),
        ("GRAMMAR_TIMEOUT", ServiceUnavailableError),
    ],
)
def test_what_is_wrong_with_a_grammar_is_told_by_the_right_error(reason, error_type):
    stop = Stop(FinishReason.ERROR, error_reason=reason)
    error = FinishedRequest.of(make_request(), stop, "because").error()
    assert type(error) is error_type
    assert (error.reason, error.message) == (reason, "because")
    assert (error.field == "structured_outputs") == (error_type is InvalidRequestError)
