"""Arithmetic on given times."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.cli.bench.figures import Latencies, figures_of, percentile
from pagewire.cli.bench.record import RequestRecord


def make_record(started_s: float, *arrivals_s: float, **more: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "due_s": started_s,
        "num_output_tokens": len(arrivals_s),
        "num_prompt_tokens": 10,
        "is_counted_by_server": True,
    }
    return RequestRecord(started_s=started_s, arrivals_s=list(arrivals_s), **(fields | more))


def test_the_latencies_of_one_request() -> None:
    found = Latencies.of(make_record(10.0, 10.5, 10.75, 11.5))
    assert (found.ttft, found.tpot, found.e2e) == (500.0, 500.0, 1500.0)
    assert found.itl == [250.0, 750.0]


def test_time_a_token_counts_tokens_and_gaps_count_messages() -> None:
    found = Latencies.of(make_record(0.0, 1.0, 2.0, num_output_tokens=5))
    assert found.tpot == 250.0
    assert found.itl == [1000.0]


def test_a_request_of_one_token_has_no_time_a_later_token() -> None:
    found = Latencies.of(make_record(0.0, 1.0))
    assert (found.tpot, found.itl) == (None, [])


def test_the_figures_of_a_run() -> None:
    records = [
        make_record(0.0, 1.0, 2.0, num_cached_tokens=4),
        make_record(0.0, 3.0, 3.5, due_s=-0.25),
        make_record(0.0, 1.0, error="HTTP 503: full"),
        make_record(0.0, error="HTTP 503: full"),
        make_record(0.0, error="refused"),
    ]
    found = figures_of(records, 4.0, (50, 100), {"ttft": 2000.0})
    assert (found.num_completed, found.num_failed) == (2, 3)
    assert found.errors == {"HTTP 503: full": 2, "refused": 1}
    assert (found.num_prompt_tokens, found.num_output_tokens) == (20, 4)
    assert found.num_cached_tokens == 4
    assert (found.request_rate, found.output_rate, found.total_rate) == (0.5, 1.0, 6.0)
    assert found.messages_per_token == 1.0
    assert found.max_lag_ms == 250.0
    assert found.goodput == 0.25
    ttft = found.latencies_ms["ttft"]
    assert (ttft.mean, ttft.std, ttft.percentiles) == (2000.0, 1000.0, {50: 2000.0, 100: 3000.0})
    assert found.latencies_ms["tpot"].percentiles == {50: 750.0, 100: 1000.0}


@pytest.mark.parametrize(
    ("objectives", "num_good"),
    [
        ({"ttft": 1000.0}, 1),
        ({"ttft": 999.0}, 0),
        ({"ttft": 3000.0}, 2),
        ({"ttft": 3000.0, "tpot": 500.0}, 1),
        ({"e2e": 3500.0, "tpot": 1000.0}, 2),
    ],
)
def test_goodput_counts_requests_that_keep_all_objectives(
    objectives: dict[str, float], num_good: int
) -> None:
    records = [make_record(0.0, 1.0, 2.0), make_record(0.0, 3.0, 3.5)]
    assert figures_of(records, 1.0, (), objectives).goodput == num_good


def test_a_request_without_text_is_complete_and_has_no_latencies() -> None:
    records = [make_record(0.0, num_output_tokens=1), make_record(0.0, 1.0)]
    found = figures_of(records, 1.0, (50,), {"ttft": 5000.0})
    assert (found.num_completed, found.num_failed, found.num_output_tokens) == (2, 0, 2)
    assert found.latencies_ms["ttft"].percentiles == {50: 1000.0}
    assert found.goodput == 1.0


def test_a_run_in_which_all_failed_has_figures_too() -> None:
    found = figures_of([make_record(0.0, error="no")], 1.0, (50,), {"ttft": 1.0})
    assert (found.num_completed, found.latencies_ms, found.goodput) == (0, {}, 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50), st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert percentile(sorted(values), 0) == min(values)
    assert percentile(sorted(values), 100) == max(values)
