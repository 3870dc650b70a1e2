"""Finished traces as OpenTelemetry spans: the request's own, and one below it for each stretch.

Attributes have vLLM's names where it has any. Names are `box.part`, as in the trace itself. To make
a span takes a fraction of a millisecond, and a request has dozens: they are made a few at a time,
between which the event loop does what clients wait for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

from gateway.trace.output_trace import Segment
from gateway.trace.parts import BOX_OF
from gateway.trace.report import facts, part_totals
from gateway.trace.request_trace import RequestTrace
from pagewire.kit.logs import get_logger
from pagewire.kit.spans import Attributes, Spans, is_sampled

MAX_WAITING = 1024
"""Traces whose spans are still to be made; further ones are dropped."""
SPANS_AT_ONCE = 4
"""Made between two turns of the event loop."""

_CLOSE_TIMEOUT_S = 3.0
_NS_PER_S = 1e9

log = get_logger("gateway.trace")


class SpanExport:
    """Used from one event loop; `run` is its only task, and its owner calls `close` afterwards."""

    def __init__(self, spans: Spans, *, max_waiting: int = MAX_WAITING) -> None:
        """Prepare; nothing is made before `run`.

        Args:
            spans: Where they go.
            max_waiting: Traces that wait at most.
        """
        self._spans = spans
        self._max_waiting = max_waiting
        self._waiting: deque[Iterator[int]] = deque()
        self._has_work = asyncio.Event()
        self._num_dropped = 0

    def add(self, trace: RequestTrace) -> None:
        """Take a trace that is closed; one that is not sampled, or finds no room, is not sent."""
        if not self._spans.is_on or not is_sampled(trace.span.traceparent):
            return
        if len(self._waiting) >= self._max_waiting:
            self._num_dropped += 1
            return
        self._waiting.append(_send(self._spans, trace))
        self._has_work.set()

    async def run(self) -> None:
        """Make spans of what was taken, until cancelled."""
        while True:
            await self._has_work.wait()
            await self._send_all()
            self._tell_dropped()
            self._has_work.clear()

    async def close(self) -> None:
        """Make the spans of what still waits, within a bounded time; `run` has ended."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._send_all()
        except TimeoutError:
            log.warning("spans_dropped", num_requests=len(self._waiting))
            self._waiting.clear()

    async def _send_all(self) -> None:
        """Whatever interrupts it, goes on later where it has stopped."""
        while self._waiting:
            try:
                num_sent = sum(islice(self._waiting[0], SPANS_AT_ONCE))
            except Exception as exc:
                # A bug that one request's spans meet must not end the gateway.
                log.error("spans_failed", exc_info=exc)
                num_sent = 0
            if num_sent < SPANS_AT_ONCE:
                self._waiting.popleft()
            if self._num_dropped >= self._max_waiting:
                self._tell_dropped()  # there may be no end of it
            await asyncio.sleep(0)

    def _tell_dropped(self) -> None:
        if self._num_dropped:
            log.warning("spans_dropped", num_requests=self._num_dropped)
            self._num_dropped = 0


def _send(spans: Spans, trace: RequestTrace) -> Iterator[int]:
    """Send one span at each step, the request's own at last."""
    to_unix_ns = trace.created_ns - trace.start_ns
    parent = trace.span.traceparent
    for span in trace.spans:
        start_ns = span.start_ns + to_unix_ns
        spans.record(_name(span.name), parent, start_ns, start_ns + span.duration_ns, {})
        yield 1
    for segment in trace.segments:
        spans.record(
            _name(segment.kind),
            parent,
            segment.start_ns + to_unix_ns,
            segment.end_ns + to_unix_ns,
            _segment_attributes(segment),
        )
        yield 1
    end_ns = trace.start_ns + trace.duration_ns + to_unix_ns
    trace.span.end(end_ns, _attributes(trace), trace.error)
    yield 1


def _name(part: str) -> str:
    return f"{BOX_OF.get(part, 'worker')}.{part}"


def _segment_attributes(segment: Segment) -> Attributes:
    counts = {"steps": segment.num_steps, "tokens": segment.num_tokens}
    return {**counts, **{f"{name}_ms": ns / 1e6 for name, ns in segment.parts.items()}}


def _attributes(trace: RequestTrace) -> Attributes:
    known, totals = facts(trace), part_totals(trace)
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.request.id": str(known["generation_id"]),
        "gen_ai.response.model": str(known["model"]),
        "gen_ai.request.n": int(known["num_outputs"]),
        "gen_ai.usage.prompt_tokens": int(known["prompt_tokens"]),
        "gen_ai.usage.completion_tokens": int(known["output_tokens"]),
        "gen_ai.latency.time_in_queue": totals.get("queue", 0) / _NS_PER_S,
        "gen_ai.latency.e2e": trace.duration_ns / _NS_PER_S,
        "http.route": str(known["route"]),
        "status": str(known["status"]),
    }
    if trace.first_output_ns is not None:
        first_s = (trace.first_output_ns - trace.start_ns) / _NS_PER_S
        attributes["gen_ai.latency.time_to_first_token"] = first_s
    return attributes
