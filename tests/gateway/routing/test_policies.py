"""Routing policies: what holds for any replicas, and the numbers of the rules at their edges."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies import (
    OVERLOAD_REQUESTS,
    TOKENS_PER_REQUEST,
    Candidate,
    RoutingPolicy,
    without_overloaded,
)

NAMES = ("prefix-aware", "least-loaded", "round-robin")

figures = st.tuples(
    st.integers(0, 500), st.integers(0, 100_000), st.integers(0, 4096), st.booleans()
)
replica_sets = st.lists(figures, min_size=1, max_size=8).map(
    lambda rows: [Candidate(f"r{i}", *row) for i, row in enumerate(rows)]
)


def choose(name, candidates, num_prompt_tokens=4096):
    return RoutingPolicy(name).choose(candidates, num_prompt_tokens)


@pytest.mark.parametrize("name", NAMES)
@given(candidates=replica_sets)
def test_one_that_lacks_its_workers_is_chosen_only_if_all_do(name, candidates):
    chosen = choose(name, candidates)
    assert chosen.is_ready or not any(each.is_ready for each in candidates)


@given(candidates=replica_sets)
def test_no_other_has_less_to_do_than_the_least_loaded(candidates):
    chosen = choose("least-loaded", candidates)
    able = [each for each in candidates if each.is_ready] or candidates
    assert not any(
        each.num_requests < chosen.num_requests
        and each.num_tokens_waiting < chosen.num_tokens_waiting
        for each in able
    )


@given(candidates=replica_sets)
def test_prefix_aware_never_takes_one_that_is_worse_in_all_respects(candidates):
    chosen = choose("prefix-aware", candidates)
    able = [each for each in candidates if each.is_ready] or candidates
    assert not any(
        each.num_matched_tokens > chosen.num_matched_tokens
        and each.num_requests < chosen.num_requests
        and each.num_tokens_waiting < chosen.num_tokens_waiting
        for each in able
    )


@given(
    matches=st.lists(st.integers(0, 4096), min_size=1, max_size=8), num_requests=st.integers(0, 500)
)
def test_among_equally_loaded_ones_the_longest_match_wins(matches, num_requests):
    candidates = [
        Candidate(f"r{i}", num_requests, num_matched_tokens=match)
        for i, match in enumerate(matches)
    ]
    assert choose("prefix-aware", candidates).num_matched_tokens == max(matches)


@given(candidates=replica_sets)
def test_the_chosen_one_is_never_overloaded(candidates):
    chosen = choose("prefix-aware", candidates)
    able = [each for each in candidates if each.is_ready] or candidates
    least = min(each.num_requests for each in able)
    assert chosen.num_requests <= 1.5 * least + OVERLOAD_REQUESTS


@given(candidates=replica_sets)
def test_somebody_is_not_overloaded(candidates):
    assert without_overloaded(candidates)


@pytest.mark.parametrize(("num_more", "stays"), [(15, True), (17, False)])
def test_a_match_makes_up_for_its_tokens_worth_of_requests(num_more, stays):
    home = Candidate("home", 10 + num_more, num_matched_tokens=16 * TOKENS_PER_REQUEST)
    chosen = choose("prefix-aware", [home, Candidate("other", 10)])
    assert (chosen is home) is stays


@pytest.mark.parametrize(("num_requests", "stays"), [(47, True), (48, False)])
def test_no_match_makes_up_for_an_overload(num_requests, stays):
    home = Candidate("home", num_requests, num_matched_tokens=100_000)
    chosen = choose("prefix-aware", [home, Candidate("other", 10)], 100_001)
    assert (chosen is home) is stays


def test_prompts_that_wait_count_as_what_they_are():
    home = Candidate("home", 1, num_tokens_waiting=5000, num_matched_tokens=2000)
    assert choose("prefix-aware", [home, Candidate("other", 1)]).key == "other"


@pytest.mark.parametrize("name", NAMES)
@given(num_replicas=st.integers(1, 8), num_rounds=st.integers(1, 5))
def test_equals_take_turns(name, num_replicas, num_rounds):
    policy = RoutingPolicy(name)
    candidates = [Candidate(f"r{i}", 3) for i in range(num_replicas)]
    chosen = [policy.choose(candidates, 10).key for _ in range(num_rounds * num_replicas)]
    assert set(Counter(chosen).values()) == {num_rounds}


def test_turns_are_fair_when_two_models_are_asked_in_turn():
    policy = RoutingPolicy("round-robin")
    first, second = ([Candidate(f"{model}{i}", 0) for i in range(2)] for model in "ab")
    chosen = Counter(
        policy.choose(candidates, 1).key for _ in range(10) for candidates in (first, second)
    )
    assert set(chosen.values()) == {5}


def test_one_that_comes_back_is_as_new():
    policy, pair = RoutingPolicy("round-robin"), [Candidate("a", 0), Candidate("b", 0)]
    assert [policy.choose(pair, 1).key for _ in range(3)] == ["a", "b", "a"]
    policy.forget("a")
    assert policy.choose(pair, 1).key == "a"


def test_a_shared_prefix_spreads_to_where_there_is_room():
    """All share it; the one that has it first takes its worth of requests, then others get it."""
    policy, loads, holders = RoutingPolicy("prefix-aware"), Counter(), {"r0"}
    for _ in range(400):
        candidates = [
            Candidate(key, loads[key], num_matched_tokens=1024 if key in holders else 0)
            for key in ("r0", "r1", "r2", "r3")
        ]
        chosen = policy.choose(candidates, 1100).key
        loads[chosen] += 1
        holders.add(chosen)
    assert max(loads.values()) - min(loads.values()) <= 1024 // TOKENS_PER_REQUEST
