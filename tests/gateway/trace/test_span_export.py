"""Spans of ended requests are made a few at a time, of as many requests as there is room for."""

from __future__ import annotations

import asyncio

import pytest

from gateway.trace.recorder import TraceRecorder
from gateway.trace.request_trace import RequestTrace
from gateway.trace.span_export import SPANS_AT_ONCE, SpanExport
from pagewire.kit.spans import Attributes, OpenSpan, Spans, is_sampled
from pagewire.kit.tasks import cancel_and_wait
from tests.gateway.trace.conftest import Clock

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-1] + "0"
NUM_PARTS = 40
FACTS = {
    "route": "/v1/completions", "status": 200, "model": "m", "generation_id": "g",
    "num_outputs": 1, "prompt_tokens": 3, "output_tokens": 4,
}  # fmt: skip


class Recorded(Spans):
    """Keeps the names of what is sent, turn by turn of the event loop."""

    is_on = True

    def __init__(self, traceparent: str = SAMPLED) -> None:
        self.turns: list[list[str]] = [[]]
        self._traceparent = traceparent

    @property
    def names(self) -> list[str]:
        return [name for turn in self.turns for name in turn]

    def open(self, name: str, traceparent: str, start_ns: int) -> OpenSpan:
        return _Span(self, self._traceparent)

    def record(
        self, name: str, traceparent: str, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        assert traceparent == self._traceparent and start_ns <= end_ns
        self.turns[-1].append(name)


class _Span(OpenSpan):
    def __init__(self, spans: Recorded, traceparent: str) -> None:
        self._spans = spans
        self.traceparent = traceparent

    def end(self, end_ns: int, attributes: Attributes, error: str = "") -> None:
        assert attributes["gen_ai.usage.completion_tokens"] == 4
        self._spans.turns[-1].append("llm_request")


def _trace(clock: Clock, spans: Spans) -> RequestTrace:
    trace = RequestTrace("r", with_outputs=True)
    trace.span = spans.open("llm_request", "", trace.created_ns)
    for _ in range(NUM_PARTS - 1):
        clock.now_ms += 1
        trace.mark("parse")
    clock.now_ms += 1
    trace.facts = dict(FACTS)
    trace.close()
    return trace


async def _run_until_sent(exported: SpanExport, spans: Recorded, num_requests: int) -> None:
    running = asyncio.create_task(exported.run())
    try:
        while spans.names.count("llm_request") < num_requests:
            spans.turns.append([])
            await asyncio.sleep(0)
    finally:
        await cancel_and_wait(running)


async def test_the_event_loop_has_turns_between_a_few_spans(clock: Clock) -> None:
    spans = Recorded()
    exported = SpanExport(spans)
    for _ in range(3):
        exported.add(_trace(clock, spans))
    assert spans.names == []
    await _run_until_sent(exported, spans, 3)
    assert spans.names.count("llm_request") == 3
    assert len(spans.names) == 3 * (NUM_PARTS + 1)
    assert max(map(len, spans.turns)) <= SPANS_AT_ONCE


async def test_more_than_there_is_room_for_are_dropped(clock: Clock) -> None:
    spans = Recorded()
    exported = SpanExport(spans, max_waiting=2)
    for _ in range(5):
        exported.add(_trace(clock, spans))
    await _run_until_sent(exported, spans, 2)
    await exported.close()
    assert spans.names.count("llm_request") == 2
    exported.add(_trace(clock, spans))
    await _run_until_sent(exported, spans, 3)


async def test_what_is_dropped_is_told_however_long_there_is_no_room(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Recorded()
    exported = SpanExport(spans, max_waiting=2)
    running = asyncio.create_task(exported.run())
    try:
        for _ in range(100):  # never without work
            for _ in range(5):
                exported.add(_trace(clock, spans))
            await asyncio.sleep(0)
    finally:
        await cancel_and_wait(running)
    told = caplog.records[0].msg
    assert isinstance(told, dict)
    assert told["event"] == "spans_dropped" and told["num_requests"] >= 2
    await exported.close()


async def test_what_still_waits_at_the_end_is_sent(clock: Clock) -> None:
    spans = Recorded()
    exported = SpanExport(spans)
    exported.add(_trace(clock, spans))
    running = asyncio.create_task(exported.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancel_and_wait(running)
    assert 0 < len(spans.names) < NUM_PARTS
    await exported.close()
    assert len(spans.names) == NUM_PARTS + 1
    assert spans.names[-1] == "llm_request"


async def test_nothing_is_made_of_a_trace_that_is_not_sampled(clock: Clock) -> None:
    for traceparent in (UNSAMPLED, ""):
        spans = Recorded(traceparent)
        exported = SpanExport(spans)
        exported.add(_trace(clock, spans))
        await exported.close()
        assert spans.names == []
    assert is_sampled(SAMPLED) and not is_sampled(UNSAMPLED) and not is_sampled("")


async def test_a_request_whose_spans_fail_harms_no_other(clock: Clock) -> None:
    spans = Recorded()
    exported = SpanExport(spans)
    broken = _trace(clock, spans)
    del broken.facts["model"]
    exported.add(broken)
    exported.add(_trace(clock, spans))
    await _run_until_sent(exported, spans, 1)
    assert spans.names.count("llm_request") == 1


async def test_a_request_that_ends_waits_for_no_span(
    clock: Clock,
) -> None:
    spans = Recorded()
    recorder = TraceRecorder(spans=spans)
    with recorder.call(joins_trace=False) as trace:
        with trace.generating(lambda: FACTS):
            clock.now_ms += 1
        recorder.end(trace, "/v1/completions", 200)
    assert spans.names == []
    await recorder.exported.close()
    assert spans.names[-1] == "llm_request"
