"""Rates, means and what is not known."""

from __future__ import annotations

import pytest

from gateway.map.history import INTERVAL_S, KEPT_S, History, Sample, Window


def window(*values: float, name: str = "x") -> Window:
    return Window([Sample.of(float(at_s), {name: value}) for at_s, value in enumerate(values)])


def test_a_counter_has_a_rate() -> None:
    assert window(10.0, 12.0, 18.0).rate("x") == 4.0


def test_a_counter_that_began_anew_counts_what_it_has_since() -> None:
    assert window(100.0, 103.0, 2.0).growth("x") == 5.0


def test_gauges_have_a_last_value_a_mean_a_peak_and_a_share() -> None:
    gauge = window(1.0, 5.0, 0.0)
    assert (gauge.last("x"), gauge.mean("x"), gauge.peak("x")) == (0.0, 2.0, 5.0)
    assert gauge.share_above("x", 0.0) == pytest.approx(2 / 3)


def test_one_counter_by_another() -> None:
    samples = [Sample.of(0.0, {"a": 1.0, "b": 2.0}), Sample.of(1.0, {"a": 4.0, "b": 8.0})]
    assert Window(samples).ratio("a", "b") == 0.5


def test_what_is_not_known_is_none() -> None:
    for nothing in (window(), window(1.0, 2.0, name="other")):
        assert nothing.last("x") is nothing.mean("x") is nothing.peak("x") is None
        assert nothing.rate("x") is nothing.ratio("x", "other") is None
        assert nothing.share_above("x", 0.0) == 0.0
    assert window(1.0).rate("x") is None
    assert window(3.0, 3.0).ratio("x", "x") is None


def test_figures_that_come_later_have_a_rate_of_their_own_time() -> None:
    samples = [Sample.of(0.0, {}), Sample.of(8.0, {"x": 0.0}), Sample.of(10.0, {"x": 6.0})]
    assert Window(samples).rate("x") == 3.0


def test_only_two_minutes_are_kept() -> None:
    history = History()
    for second in range(1000):
        history.add(float(second), {"x": 2.0 * second})
    assert len(history.window(0.0)) == KEPT_S / INTERVAL_S
    assert history.last_s == 999.0
    assert len(history.window(995.0)) == 5
    assert len(history.whole()) == KEPT_S / INTERVAL_S
    rates = history.whole().rates("x", bin_s=2.0)
    assert len(rates) == pytest.approx(KEPT_S / 2, abs=1)
    assert set(rates) == {2.0}
