"""The slowest traces: which are kept, and that a further one costs no more where many are kept."""

from __future__ import annotations

import random

import pytest

from gateway.trace.request_trace import RequestTrace
from gateway.trace.slowest import SLOW_FOR_S, SlowestTraces
from tests.gateway.trace.conftest import Clock


class Now:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _trace(clock: Clock, request_id: str, took_ms: float) -> RequestTrace:
    trace = RequestTrace(request_id, with_outputs=True)
    clock.now_ms += took_ms
    trace.close()
    return trace


def _of_durations(clock: Clock, durations_ms: list[int]) -> list[RequestTrace]:
    return [_trace(clock, str(number), took) for number, took in enumerate(durations_ms)]


def test_they_are_those_of_a_full_sort_at_every_moment(clock: Clock) -> None:
    """Traces come at random moments of some hours, so that they grow old between."""
    rng, now = random.Random(7), Now()
    kept, expected = SlowestTraces(5, 10**9, now), list[tuple[float, RequestTrace]]()
    for trace in _of_durations(clock, rng.sample(range(1, 10_000), 400)):
        now.now_s += rng.random() * SLOW_FOR_S / 20
        kept.add(trace)
        expected = [each for each in expected if each[0] >= now.now_s - SLOW_FOR_S]
        expected.append((now.now_s, trace))
        expected = sorted(expected, key=lambda each: -each[1].duration_ns)[:5]
        assert kept.ordered() == [each for _, each in expected]


def test_without_age_they_are_exactly_the_slowest(clock: Clock) -> None:
    traces = _of_durations(clock, random.Random(3).sample(range(1, 10_000), 300))
    kept = SlowestTraces(20, 10**9, Now())
    for trace in traces:
        kept.add(trace)
    assert kept.ordered() == sorted(traces, key=lambda each: -each.duration_ns)[:20]
    newest = [int(trace.request_id) for trace in kept.newest_first()]
    assert newest == sorted(newest, reverse=True)


def test_a_further_one_compares_itself_with_few(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at durations are counted: a sort of a thousand takes thousands."""
    looks = [0]

    def counted(trace: RequestTrace) -> int:
        looks[0] += 1
        return int(trace.end_ns or 0) - trace.start_ns

    kept = SlowestTraces(1000, 10**9, Now())
    for trace in _of_durations(clock, list(range(1, 1001))):
        kept.add(trace)
    slower = _of_durations(clock, [5000] * 10)
    monkeypatch.setattr(RequestTrace, "duration_ns", property(counted))
    for trace in slower:
        kept.add(trace)
    assert looks[0] <= 10 * 4
    assert len(kept.ordered()) == 1000


def test_what_grew_old_leaves_nothing_behind(clock: Clock) -> None:
    """Each hour's traces are slower than those of the hour before, which are never looked at."""
    now = Now()
    kept = SlowestTraces(10, 10**9, now)
    for hour in range(200):
        now.now_s = hour * (SLOW_FOR_S + 1)
        for trace in _of_durations(clock, [hour + 1] * 10):
            kept.add(trace)
    assert len(kept.ordered()) == 10
    assert len(kept._fastest_first) <= 64
