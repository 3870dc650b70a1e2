"""The two loops that every running request of a step is in."""

import pytest

from scheduler_svc.step_rows import advance_all, end_of_quiet_run
from tests.scheduler_svc.drafters import KnowingDrafter
from tests.scheduler_svc.factories import EOS, add, make_request, make_scheduler, step


def decoding(num_tokens=6, num_quiet_tokens=8, **overrides):
    """A request whose newest token alone is not computed."""
    request = make_request(num_tokens, **overrides)
    request.num_computed_tokens = num_tokens - 1
    request.note_quiet(num_quiet_tokens)
    return request


def test_a_run_ends_at_the_first_that_needs_a_look_or_at_the_limit():
    quiet, full = decoding(), decoding(num_quiet_tokens=6)
    assert end_of_quiet_run([quiet, quiet, full, quiet], 0, 9) == 2
    assert end_of_quiet_run([quiet, quiet, full, quiet], 2, 9) == 2
    assert end_of_quiet_run([quiet, quiet, full, quiet], 3, 9) == 4
    assert end_of_quiet_run([quiet, quiet, full, quiet], 0, 1) == 1
    assert end_of_quiet_run([], 0, 9) == 0


def test_a_prefill_and_a_request_with_drafts_are_no_quiet_decodes():
    prefill, drafted, waiting = decoding(), decoding(), decoding()
    prefill.num_computed_tokens = 3
    drafted.drafts = KnowingDrafter(4, 70).begin()
    # Nothing to compute: its last token is under way.
    waiting.num_computed_tokens = 6
    for request in (prefill, drafted, waiting):
        assert end_of_quiet_run([request], 0, 9) == 0


def test_the_last_token_of_a_full_output_is_not_computed():
    request = decoding(num_tokens=6, max_tokens=2, num_quiet_tokens=100)
    assert end_of_quiet_run([request], 0, 9) == 1
    request.all_token_ids += [1, 2]
    request.num_computed_tokens = 7
    assert request.num_pending_tokens == 0
    assert end_of_quiet_run([request], 0, 9) == 0


def test_what_is_computed_to_its_end_draws_a_token():
    whole, part, behind = make_request(6), make_request(6), decoding()
    behind.num_output_placeholders = 1
    behind.num_computed_tokens = 6
    assert advance_all([whole, part, behind], [6, 4, 1]) == [True, False, True]
    assert [r.num_computed_tokens for r in (whole, part, behind)] == [6, 4, 7]
    assert [r.num_output_placeholders for r in (whole, part, behind)] == [1, 0, 2]


@pytest.mark.parametrize("caching", [True, False])
def test_decodes_are_quiet_but_where_a_block_is_full(caching):
    scheduler = make_scheduler(block_size=8, enable_prefix_caching=caching)
    request = add(scheduler, 4, max_tokens=20)
    quiet = []
    while not request.status.is_finished:
        quiet.append(end_of_quiet_run([request], 0, 9) == 1)
        step(scheduler)
    # The prompt, then what is under block 1; each full block needs a look, and a new one.
    assert quiet.count(True) > quiet.count(False)
    assert not quiet[0]


def test_a_request_without_blocks_is_not_quiet():
    scheduler = make_scheduler(block_size=8)
    request = add(scheduler, 4)
    step(scheduler)
    step(scheduler)
    assert end_of_quiet_run([request], 0, 9) == 1
    scheduler.preempt_all()
    assert request.num_quiet_tokens == 0


def test_a_drawn_token_takes_the_place_of_its_placeholder_and_may_end_the_output():
    request = decoding(num_tokens=6, max_tokens=3, stop_token_ids=(7,))
    request.num_output_placeholders = 3
    assert request.append_drawn_token(1) is None
    assert request.num_output_placeholders == 2
    assert request.append_drawn_token(7).stop_token_id == 7
    assert request.append_drawn_token(1).reason.value == "length"
    assert request.all_token_ids[6:] == [1, 7, 1]
    assert decoding().append_drawn_token(EOS).eos_token_id == EOS
