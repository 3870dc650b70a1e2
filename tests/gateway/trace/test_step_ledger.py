"""Moments sum up to the time that has passed, whatever frames say."""

from __future__ import annotations

import pytest

from gateway.trace.parts import STEP_PARTS, fit
from gateway.trace.step_ledger import NO_LEDGER, NOWHERE, StepLedger
from pagewire.v1 import scheduler_pb2
from tests.gateway.trace.conftest import MS, Clock
from tests.gateway.trace.steps import Engine


def test_totals_are_the_time_since_the_first_frame(clock: Clock) -> None:
    engine = Engine(clock)
    first = engine.step()
    for way_ms in (0, 3, -2, 0):
        last = engine.step(way_ms=way_ms)
    assert sum(last.totals) == last.now_ns - first.now_ns


def test_what_overlapped_the_step_before_does_not_count_twice(clock: Clock) -> None:
    ledger = StepLedger()
    clock.now_ms += 10
    ledger.take(scheduler_pb2.StepTimings())
    clock.now_ms += 10
    # Sent while the step before ran, so that it waited in the worker for 9 ms.
    timings = scheduler_pb2.StepTimings(
        schedule_ns=2 * MS,
        execute_ns=20 * MS,
        queue_ns=9 * MS,
        busy_ns=9 * MS,
        forward_ns=8 * MS,
        elapsed_ns=10 * MS,
    )
    parts = dict(zip(STEP_PARTS, ledger.take(timings).totals, strict=True))
    assert parts["forward"] == 8 * MS
    assert parts["prepare"] == 1 * MS
    assert parts["worker_wire"] == 1 * MS  # of 2: one was hidden
    assert parts["worker_queue"] == parts["schedule"] == parts["engine_wire"] == 0


@pytest.mark.parametrize("span_ns", [-5, 0, 3, 10, 100])
def test_fitted_parts_fill_the_span_and_nothing_else(span_ns: int) -> None:
    fitted = fit((1, 2, 3, 4, 5, 6), span_ns)
    assert sum(fitted) == max(span_ns, 0)
    assert min(fitted) >= 0


def test_without_a_ledger_there_is_no_moment() -> None:
    assert NO_LEDGER.take(scheduler_pb2.StepTimings()) is NOWHERE
