"""Self times from nested spans."""

from __future__ import annotations

from collections.abc import Iterable

from worker_svc.profile_times import Span, TimeSums
from worker_svc.profiling import MAX_OPERATORS, OperatorTime, ProfileTimes


def span(name: str, start: int, end: int, thread: int = 1, *, on_device: bool = False) -> Span:
    return Span(thread, start, start - end, name, on_device)


def sum_times(spans: Iterable[Span]) -> ProfileTimes:
    sums = TimeSums()
    sums.add(spans)
    return sums.times()


def test_segments_add_up() -> None:
    sums = TimeSums()
    sums.add([span("linear", 0, 10), span("mm", 2, 6)])
    sums.add([span("mm", 8, 20)])
    assert sums.times().operators == [OperatorTime("mm", 2, 16, 0), OperatorTime("linear", 1, 6, 0)]


def test_an_operator_does_not_count_what_it_called() -> None:
    times = sum_times(
        [span("add", 20, 50), span("linear", 10, 100), span("mm", 50, 90), span("mm", 100, 130)]
    )
    assert times.operators == [
        OperatorTime("mm", 2, 70, 0),
        OperatorTime("add", 1, 30, 0),
        OperatorTime("linear", 1, 20, 0),
    ]
    assert times.total_self_cpu_ns == 120


def test_a_call_nests_only_in_calls_of_its_own_thread() -> None:
    times = sum_times([span("step", 0, 100, thread=1), span("other", 10, 60, thread=2)])
    assert [operator.self_cpu_ns for operator in times.operators] == [100, 50]


def test_what_runs_on_a_device_counts_in_full_and_comes_first() -> None:
    times = sum_times(
        [
            span("launch", 0, 40),
            span("kernel", 10, 30, on_device=True),
            span("kernel", 35, 36, on_device=True),
        ]
    )
    assert times.operators == [OperatorTime("kernel", 2, 0, 21), OperatorTime("launch", 1, 40, 0)]
    assert (times.total_self_cpu_ns, times.total_self_device_ns) == (40, 21)


def test_the_list_is_bounded_and_the_total_is_not() -> None:
    num_operators = MAX_OPERATORS + 5
    times = sum_times(span(f"op{i}", 10 * i, 10 * i + 1) for i in range(num_operators))
    assert len(times.operators) == MAX_OPERATORS
    assert times.total_self_cpu_ns == num_operators


def test_a_profile_without_events_is_empty() -> None:
    assert sum_times([]).operators == []
