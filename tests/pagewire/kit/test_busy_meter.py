"""Work that has ended and work under way both count."""

from __future__ import annotations

import pytest

from pagewire.kit.busy_meter import BusyMeter


def test_work_counts_while_it_is_under_way_and_afterwards() -> None:
    now_ns = 0
    meter = BusyMeter(2, clock_ns=lambda: now_ns)
    with meter.working():
        now_ns = 10
        assert meter.busy_ns() == 10
        with meter.working():
            now_ns = 13
            assert meter.busy_ns() == 16
    now_ns = 1000
    assert meter.busy_ns() == 16


def test_work_that_fails_counts_too() -> None:
    now_ns = 0
    meter = BusyMeter(1, clock_ns=lambda: now_ns)
    with pytest.raises(ZeroDivisionError), meter.working():
        now_ns = 7
        raise ZeroDivisionError
    now_ns = 9
    assert meter.busy_ns() == 7
