import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.ngram import (
    MAX_CANDIDATES,
    MAX_INDEXED_AT_ONCE,
    MAX_INDEXED_TOKENS,
    NgramIndex,
)


def propose(token_ids, max_tokens=4, shortest=2, longest=4):
    return NgramIndex(shortest, longest).propose(token_ids, max_tokens)


def test_what_followed_the_last_tokens_earlier_is_proposed():
    assert propose([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]
    assert propose([1, 2, 3, 4, 5, 9, 1, 2], max_tokens=2) == [3, 4]


def test_nothing_is_proposed_where_the_last_tokens_are_new():
    assert propose([1, 2, 3, 4, 5]) == []
    assert propose([1, 2, 3, 1]) == []
    assert propose([5]) == []
    assert propose([1, 2, 3, 1, 2], max_tokens=0) == []


def test_the_longest_earlier_run_wins_over_a_later_shorter_one():
    assert propose([7, 1, 2, 3, 8, 1, 2, 4, 9, 7, 1, 2], max_tokens=1) == [3]


def test_of_equally_long_runs_the_latest_wins():
    assert propose([1, 2, 3, 5, 1, 2, 4, 6, 1, 2], max_tokens=1) == [4]


def test_a_text_that_repeats_goes_on_over_its_own_guesses():
    assert propose([1, 2, 1, 2], max_tokens=5) == [1, 2, 1, 2, 1]
    assert propose([7, 7, 7], max_tokens=3) == [7, 7, 7]


def test_an_index_that_grows_says_what_a_new_one_says():
    rng = random.Random(1)
    token_ids: list[int] = []
    index = NgramIndex(2, 4)
    for _ in range(300):
        token_ids += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
        assert index.propose(token_ids, 5) == NgramIndex(2, 4).propose(token_ids, 5)


def test_a_lookup_compares_a_bounded_number_of_places():
    # The only run of three is older than the last places that share its end.
    token_ids = [5, 1, 2, 8] + [1, 2, 9] * MAX_CANDIDATES + [5, 1, 2]
    assert propose(token_ids, max_tokens=1) == [9]
    assert propose([5, 1, 2, 8, *[1, 2, 9] * (MAX_CANDIDATES - 1), 5, 1, 2], max_tokens=1) == [8]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 3))
def test_a_proposal_is_what_followed_the_longest_run(token_ids, shortest, more):
    longest = shortest + more

    def run_length(end):
        length = 0
        while length < min(longest, end + 1) and (
            token_ids[end - length] == token_ids[len(token_ids) - 1 - length]
        ):
            length += 1
        return length

    ends = [end for end in range(len(token_ids) - 1) if run_length(end) >= shortest]
    proposed = propose(token_ids, 3, shortest, longest)
    if not ends:
        assert proposed == []
        return
    ends = ends[-MAX_CANDIDATES:]
    best = max(ends, key=lambda end: (run_length(end), end))
    period = len(token_ids) - 1 - best
    assert proposed == [token_ids[best + 1 + i % period] for i in range(3)]


def test_runs_need_a_length():
    with pytest.raises(ValueError, match="1 <= min <= max"):
        NgramIndex(0, 3)
    with pytest.raises(ValueError, match="1 <= min <= max"):
        NgramIndex(3, 2)


def test_a_long_prompt_is_indexed_a_piece_at_a_time_and_not_as_a_whole():
    text = list(range(MAX_INDEXED_TOKENS + 1000))
    index = NgramIndex(2, 4)
    recent, old = text[-50:-48], text[500:502]
    num_lookups = 0
    while index.propose([*text, *recent], 2) != text[-48:-46]:
        num_lookups += 1
    assert num_lookups == MAX_INDEXED_TOKENS // MAX_INDEXED_AT_ONCE - 1
    assert index.propose([*text, *recent, *old], 2) == []
