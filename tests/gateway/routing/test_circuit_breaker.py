"""The breaker: opens after failures in a row, tries one at a time, backs off within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.circuit_breaker import (
    FAILURES_TO_OPEN,
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    PROBE_TIMEOUT_S,
    CircuitBreaker,
)


def opened(at_s=0.0):
    breaker = CircuitBreaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed(at_s)
    return breaker


def test_it_opens_after_failures_in_a_row_only():
    breaker = CircuitBreaker()
    for _ in range(3):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.is_closed and breaker.allows(0.0)
    assert not opened().allows(FIRST_BACKOFF_S - 0.01)


def test_after_the_backoff_one_request_tries():
    breaker = opened()
    assert breaker.allows(FIRST_BACKOFF_S)
    breaker.sent(FIRST_BACKOFF_S)
    assert not breaker.allows(FIRST_BACKOFF_S)
    breaker.succeeded()
    assert breaker.is_closed and breaker.allows(FIRST_BACKOFF_S)


def test_a_trial_that_fails_doubles_the_backoff_up_to_its_bound():
    breaker, now_s, backoffs = opened(), 0.0, []
    for _ in range(8):
        start_s = now_s
        while not breaker.allows(now_s):
            now_s += 0.5
        backoffs.append(now_s - start_s)
        breaker.sent(now_s)
        breaker.failed(now_s)
    assert backoffs[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(backoffs) == MAX_BACKOFF_S
    assert breaker.num_opens == 9


@pytest.mark.parametrize("later_s", [0.0, PROBE_TIMEOUT_S])
def test_a_trial_that_proves_nothing_makes_room_for_the_next(later_s):
    breaker = opened()
    breaker.sent(FIRST_BACKOFF_S)
    if not later_s:
        breaker.unanswered()
    assert breaker.allows(FIRST_BACKOFF_S + later_s)


def test_failures_of_requests_from_before_it_opened_change_nothing():
    breaker = opened()
    for _ in range(20):
        breaker.failed(0.5)
    assert breaker.num_opens == 1
    assert breaker.allows(FIRST_BACKOFF_S)


events = st.lists(st.sampled_from(["sent", "failed", "succeeded", "unanswered", "wait"]))


@given(events)
def test_it_never_stays_away_for_longer_than_the_bound(steps):
    breaker, now_s = CircuitBreaker(), 0.0
    for step in steps:
        if step == "wait":
            now_s += 0.7
        elif step == "sent" and breaker.allows(now_s):
            breaker.sent(now_s)
        elif step == "failed":
            breaker.failed(now_s)
        elif step == "succeeded":
            breaker.succeeded()
        elif step == "unanswered":
            breaker.unanswered()
        assert breaker.allows(now_s + max(MAX_BACKOFF_S, PROBE_TIMEOUT_S))
