"""Load: reports, and our own requests on top of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.replica_load import LoadReport, ReplicaLoad


def test_without_a_report_only_ours_are_known():
    load = ReplicaLoad()
    assert (load.is_known, load.is_ready, load.num_requests(3)) == (False, True, 3)


def test_our_own_since_the_report_count_on_top():
    load = ReplicaLoad()
    load.take(LoadReport(10, 100, True), num_own=4)
    load.added(50)
    assert load.num_requests(6) == 12
    assert load.num_requests(2) == 8
    assert load.num_tokens_waiting == 150
    load.take(LoadReport(12, 150, True), num_own=6)
    assert (load.num_requests(6), load.num_tokens_waiting) == (12, 150)


def test_a_report_older_than_our_requests_hides_none():
    load = ReplicaLoad()
    load.take(LoadReport(0, 0, True), num_own=5)
    assert load.num_requests(5) == 5


@given(reported=st.integers(0, 50), then=st.integers(0, 50), now=st.integers(0, 50))
def test_it_is_never_less_than_our_own(reported, then, now):
    load = ReplicaLoad()
    load.take(LoadReport(reported, 0, True), num_own=then)
    assert load.num_requests(now) >= now


def test_lost_reports_are_no_idleness():
    load = ReplicaLoad()
    load.take(LoadReport(10, 100, False), num_own=4)
    assert not load.is_ready
    load.lost()
    assert (load.is_known, load.is_ready, load.num_tokens_waiting) == (False, True, 0)


def test_without_reports_nothing_adds_up():
    load = ReplicaLoad()
    for _ in range(3):
        load.added(1000)
    assert load.num_tokens_waiting == 0
    load.take(LoadReport(1, 7, True), num_own=3)
    load.lost()
    load.added(1000)
    assert load.num_tokens_waiting == 0
