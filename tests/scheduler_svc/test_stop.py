from dataclasses import replace

from scheduler_svc.stop import FinishReason, StopRules, check_stop

RULES = StopRules(
    eos_token_ids=frozenset({2}),
    stop_token_ids=frozenset({5, 2}),
    min_tokens=0,
    num_prompt_tokens=10,
    max_total_tokens=14,
)


def test_an_ordinary_token_goes_on():
    assert check_stop(RULES, 11, 7) is None


def test_end_of_sequence_stops():
    stop = check_stop(RULES, 11, 2)
    assert (stop.reason, stop.eos_token_id, stop.stop_token_id) == (FinishReason.STOP, 2, None)


def test_a_stop_token_says_which():
    stop = check_stop(RULES, 11, 5)
    assert (stop.reason, stop.eos_token_id, stop.stop_token_id) == (FinishReason.STOP, None, 5)


def test_end_of_sequence_is_looked_at_before_stop_tokens():
    assert check_stop(RULES, 11, 2).stop_token_id is None


def test_an_ignored_end_of_sequence_may_still_be_a_stop_token():
    rules = replace(RULES, eos_token_ids=frozenset())
    assert check_stop(rules, 11, 2).stop_token_id == 2


def test_a_full_output_ends_by_length():
    assert check_stop(RULES, 14, 7).reason is FinishReason.LENGTH


def test_a_stop_token_in_the_last_place_is_a_stop():
    assert check_stop(RULES, 14, 2).reason is FinishReason.STOP


def test_nothing_stops_before_min_tokens():
    rules = replace(RULES, min_tokens=3)
    assert check_stop(rules, 12, 2) is None
    assert check_stop(rules, 13, 2).reason is FinishReason.STOP
