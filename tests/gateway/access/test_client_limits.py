"""Token buckets, on a clock of the test's own."""

from __future__ import annotations

import pytest

from gateway.access.client_limits import ClientLimits, TokenBucket


def test_a_minutes_worth_is_there_at_once_and_no_more() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    for _ in range(60):
        assert bucket.wait_s(0.0) == 0
        bucket.take(1, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(1.0)
    assert bucket.wait_s(1.0) == 0


def test_it_never_holds_more_than_a_minutes_worth() -> None:
    bucket = TokenBucket(2, now_s=0.0)
    bucket.take(2, 3600.0)
    assert bucket.wait_s(3600.0) == pytest.approx(30.0)


def test_a_debt_fills_up_first() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    bucket.take(100, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(41.0)
    assert bucket.wait_s(40.0) == pytest.approx(1.0)
    assert bucket.wait_s(41.0) == 0


def test_what_is_given_back_is_there_again_and_never_more_than_a_minutes_worth() -> None:
    bucket = TokenBucket(2, now_s=0.0)
    bucket.take(2, 0.0)
    bucket.give_back(1, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.give_back(5, 0.0)
    bucket.take(2, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(30.0)


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ClientLimits(concurrent_requests=0)
