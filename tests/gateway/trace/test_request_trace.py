"""A request's parts follow each other from its begin to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.trace.output_trace import UNTRACED, TracedOutput
from gateway.trace.parts import BOX_OF
from gateway.trace.report import part_totals, whole
from gateway.trace.request_trace import MAX_DETAILED_OUTPUTS, RequestTrace, bound, current
from pagewire.kit.errors import QueueFullError
from tests.gateway.trace.conftest import MS, Clock
from tests.gateway.trace.steps import Engine


def _traced(clock: Clock, num_outputs: int = 1) -> tuple[RequestTrace, list[TracedOutput]]:
    """A request that was received in 3 ms, parsed in 1, tokenized in 10 of which 4 were service."""
    trace = RequestTrace("r", with_outputs=True)
    clock.now_ms += 3
    trace.mark("receive")
    clock.now_ms += 1
    with trace.generating(lambda: {"model": "m"}):
        trace.tokenizer_took(4 * MS)
        clock.now_ms += 10
        trace.mark("tokenize", "tokenize_wire")
        for _ in range(num_outputs):
            trace.output()
        clock.now_ms += 2
        trace.dispatched()
    return trace, trace.outputs


def _answer(trace: RequestTrace, output: TracedOutput, engine: Engine, num_tokens: int) -> None:
    output.joined("a:1")
    output.admitted()
    for token in range(num_tokens):
        moment = engine.step()
        if token == 0:
            output.prefilled(moment, 5)
        output.advanced(moment, 1)


def _ms(trace: RequestTrace) -> dict[str, float]:
    return {name: ns / MS for name, ns in part_totals(trace).items()}


def test_all_parts_together_are_the_time_of_the_request(clock: Clock) -> None:
    trace, (output,) = _traced(clock)
    _answer(trace, output, Engine(clock), 3)
    clock.now_ms += 5
    output.detokenized(2 * MS)
    clock.now_ms += 1
    trace.took_outputs()
    trace.took_all()
    clock.now_ms += 4
    trace.close()
    parts = _ms(trace)
    assert sum(parts.values()) * MS == trace.duration_ns
    assert list(parts) == [name for name in BOX_OF if name in parts]
    outside = {name: ms for name, ms in parts.items() if name not in ("schedule", "worker_wire")}
    assert outside == {
        "receive": 3,
        "parse": 1,
        "tokenize": 4,
        "tokenize_wire": 6,
        "dispatch": 2,
        "forward": 18,
        "sample": 6,
        "detokenize": 2,
        "detokenize_wire": 3,
        "deliver": 1,
        "write": 4,
    }


def test_of_several_outputs_the_one_that_ended_last_counts(clock: Clock) -> None:
    trace, (first, second) = _traced(clock, num_outputs=2)
    engine = Engine(clock)
    _answer(trace, first, engine, 2)
    first.detokenized(0)
    _answer(trace, second, engine, 3)
    second.detokenized(0)
    trace.took_all()
    trace.close()
    assert trace.last_output is second
    assert sum(part_totals(trace).values()) == trace.duration_ns
    assert [each["is_last"] for each in whole(trace)["outputs"]] == [False, True]


def test_only_some_of_many_outputs_are_kept_in_detail(clock: Clock) -> None:
    trace, outputs = _traced(clock, num_outputs=MAX_DETAILED_OUTPUTS + 3)
    engine = Engine(clock)
    for output in outputs:
        _answer(trace, output, engine, 1)
        output.detokenized(0)
    trace.took_all()
    trace.close()
    assert [bool(output.segments) for output in outputs] == [True] * MAX_DETAILED_OUTPUTS + [
        False,
        False,
        True,
    ]


def test_a_client_that_leaves_in_the_middle_has_all_its_time(clock: Clock) -> None:
    trace, (output,) = _traced(clock)
    _answer(trace, output, Engine(clock), 2)
    clock.now_ms += 7
    trace.failed(asyncio.CancelledError())
    trace.close()
    assert trace.error == "CANCELLED"
    assert sum(part_totals(trace).values()) == trace.duration_ns


def test_one_that_is_refused_while_it_is_tokenized_says_where_its_time_went(clock: Clock) -> None:
    trace = RequestTrace("r", with_outputs=True)
    clock.now_ms += 1

    def refuse() -> None:
        with trace.generating(dict[str, object]):
            clock.now_ms += 8
            raise QueueFullError("full", reason="FULL")

    with pytest.raises(QueueFullError):
        refuse()
    trace.close()
    assert _ms(trace) == {"parse": 1, "tokenize": 8}
    assert trace.error == "FULL"


def test_the_first_failure_stays(clock: Clock) -> None:
    trace = RequestTrace("r", with_outputs=True)
    trace.failed(QueueFullError("slow", reason="SLOW_CLIENT"))
    trace.failed(asyncio.CancelledError())
    assert trace.error == "SLOW_CLIENT"


def test_without_outputs_nothing_is_followed_through_the_engine() -> None:
    trace = RequestTrace("r", with_outputs=False)
    assert trace.output() is UNTRACED
    assert trace.outputs == []


async def test_tasks_of_a_request_find_its_trace_and_others_do_not() -> None:
    trace = RequestTrace("r", with_outputs=True)

    async def found() -> Any:
        return current()

    with bound(trace):
        assert await asyncio.create_task(found()) is trace
    assert await asyncio.create_task(found()) is not trace


def test_a_trace_tells_more_bytes_for_more_segments(clock: Clock) -> None:
    trace, (output,) = _traced(clock)
    before = trace.num_bytes
    _answer(trace, output, Engine(clock), 3)
    trace.close()
    assert trace.num_bytes > before
