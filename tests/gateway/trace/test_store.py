"""The store keeps the last traces and the slowest, within its bounds."""

from __future__ import annotations

from gateway.trace.config import NO_TRACES, TraceConfig
from gateway.trace.request_trace import RequestTrace
from gateway.trace.slowest import SLOW_FOR_S
from gateway.trace.store import TraceStore
from tests.gateway.trace.conftest import Clock


def _trace(clock: Clock, request_id: str, took_ms: float) -> RequestTrace:
    trace = RequestTrace(request_id, with_outputs=True)
    clock.now_ms += took_ms
    trace.close()
    return trace


def _ids(traces: list[RequestTrace]) -> list[str]:
    return [trace.request_id for trace in traces]


def test_the_oldest_goes_first_and_the_slowest_stays(clock: Clock) -> None:
    store = TraceStore(TraceConfig(trace_requests=2, trace_slowest=2))
    for request_id, took_ms in (("a", 50), ("b", 10), ("c", 30), ("d", 5)):
        store.add(_trace(clock, request_id, took_ms))
    assert _ids(store.recent()) == ["d", "c"]
    assert _ids(store.slowest()) == ["a", "c"]
    assert store.find("a") is not None
    assert store.find("b") is None


def test_of_two_with_one_id_the_newest_is_found(clock: Clock) -> None:
    store = TraceStore(TraceConfig())
    store.add(_trace(clock, "a", 50))
    newest = _trace(clock, "a", 1)
    store.add(newest)
    assert store.find("a") is newest


def test_an_id_that_somebody_else_used_later_hides_no_trace(clock: Clock) -> None:
    store = TraceStore(TraceConfig())
    own, other = _trace(clock, "a", 1), _trace(clock, "a", 1)
    own.client, other.client = "ann", "ben"
    store.add(own)
    store.add(other)
    assert store.find("a", lambda trace: trace.client == "ann") is own
    assert store.find("a", lambda trace: trace.client == "eve") is None


def test_the_slowest_of_long_ago_are_forgotten(clock: Clock) -> None:
    now_s = [0.0]
    store = TraceStore(TraceConfig(trace_requests=1), clock=lambda: now_s[0])
    store.add(_trace(clock, "a", 50))
    now_s[0] = SLOW_FOR_S + 1
    store.add(_trace(clock, "b", 1))
    assert _ids(store.slowest()) == ["b"]


def test_bytes_are_bounded_whatever_the_number(clock: Clock) -> None:
    one = _trace(clock, "x", 1).num_bytes
    store = TraceStore(TraceConfig(), max_bytes=3 * one)
    for number in range(10):
        store.add(_trace(clock, str(number), 10 - number))
    assert _ids(store.recent()) == ["9", "8", "7"]
    assert _ids(store.slowest()) == ["0", "1", "2"]


def test_off_means_that_nothing_is_kept(clock: Clock) -> None:
    store = TraceStore(NO_TRACES)
    store.add(_trace(clock, "a", 50))
    assert not store.is_on
    assert store.recent() == store.slowest() == []


def test_without_slowest_only_the_last_ones_are_kept(clock: Clock) -> None:
    store = TraceStore(TraceConfig(trace_slowest=0))
    store.add(_trace(clock, "a", 50))
    assert store.slowest() == []
    assert _ids(store.recent()) == ["a"]
