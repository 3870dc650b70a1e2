"""One output's segments: they have no gap, and are named for what happened."""

from __future__ import annotations

from gateway.trace.output_trace import MAX_SEGMENTS, TracedOutput
from tests.gateway.trace.conftest import Clock
from tests.gateway.trace.steps import Engine, covered, totals


def _started(clock: Clock, queue_ms: int = 20) -> tuple[TracedOutput, Engine]:
    """An output that was admitted after 2 ms, waited in the queue, and has its first token."""
    output, engine = TracedOutput(), Engine(clock)
    engine.step()
    output.begin(clock())
    output.joined("a:1")
    clock.now_ms += 2
    output.admitted()
    clock.now_ms += queue_ms
    output.scheduled(queue_ms * 1_000_000)
    moment = engine.step()
    output.prefilled(moment, 7)
    output.advanced(moment, 1)
    return output, engine


def _kinds(output: TracedOutput) -> list[str]:
    return [segment.kind for segment in output.segments]


def test_the_first_token_comes_after_admission_queue_and_prefill(clock: Clock) -> None:
    output, _ = _started(clock)
    output.close(clock())
    assert _kinds(output)[:3] == ["admission", "queue", "prefill"]
    assert covered(output, clock.now_ms)
    assert totals(output) == {
        "admission": 2,
        "queue": 20,
        "schedule": 1,
        "worker_wire": 1,
        "forward": 6,
        "sample": 2,
    }


def test_an_admission_told_late_takes_nothing_from_the_queue(clock: Clock) -> None:
    output, engine = TracedOutput(), Engine(clock)
    output.joined("a:1")
    clock.now_ms += 40
    output.admitted()
    output.scheduled(30_000_000)
    output.prefilled(engine.step(), 3)
    assert totals(output)["queue"] == 30
    assert totals(output)["admission"] == 10


def test_decode_steps_are_one_segment_with_the_parts_of_all(clock: Clock) -> None:
    output, engine = _started(clock)
    for _ in range(10):
        output.advanced(engine.step(way_ms=1), 1)
    output.detokenized(0)
    output.close(clock())
    decode = output.segments[-1]
    assert (decode.kind, decode.num_steps, decode.num_tokens) == ("decode", 10, 11)
    assert decode.parts["forward"] == 60_000_000
    assert decode.parts["engine_wire"] == 10_000_000
    assert covered(output, clock.now_ms)


def test_chunks_of_a_prompt_are_segments_with_their_tokens(clock: Clock) -> None:
    output, engine = TracedOutput(), Engine(clock)
    output.joined("a:1")
    for num_tokens in (64, 64, 5):
        output.prefilled(engine.step(), num_tokens)
    output.close(clock())
    assert [each.num_tokens for each in output.segments if each.kind == "prefill"] == [64, 64, 5]
    assert covered(output, clock.now_ms)


def test_chunks_that_merged_in_one_frame_are_one_segment(clock: Clock) -> None:
    output, engine = TracedOutput(), Engine(clock)
    moment = engine.step()
    output.prefilled(moment, 64)
    output.prefilled(moment, 5)
    (chunk,) = (each for each in output.segments if each.kind == "prefill")
    assert (chunk.num_steps, chunk.num_tokens) == (2, 69)


def test_a_preemption_is_a_part_up_to_the_step_that_computes_again(clock: Clock) -> None:
    output, engine = _started(clock)
    output.advanced(engine.step(), 1)
    output.preempted()
    for _ in range(5):  # the others go on
        engine.step()
    moment = engine.step()
    output.prefilled(moment, 9)
    output.advanced(moment, 1)
    output.detokenized(0)
    output.close(clock())
    assert output.num_preemptions == 1
    assert totals(output)["preempted"] == 50
    assert _kinds(output)[-2:] == ["preempted", "prefill"]
    assert covered(output, clock.now_ms)


def test_a_lost_worker_is_a_recovery_until_tokens_are_computed_again(clock: Clock) -> None:
    output, engine = _started(clock)
    output.advanced(engine.step(), 1)
    clock.now_ms += 3
    output.recovering()
    output.recovering()  # each frame says so
    output.prefilled(engine.step(after_ms=500), 9)
    output.detokenized(0)
    output.close(clock())
    assert output.num_recoveries == 1
    assert totals(output)["recovery"] == 503
    assert covered(output, clock.now_ms)


def test_another_engine_goes_on_with_the_same_segments(clock: Clock) -> None:
    output, engine = _started(clock)
    for _ in range(3):
        output.advanced(engine.step(), 1)
    clock.now_ms += 100
    output.joined("b:2")
    other = Engine(clock)
    other.step()
    moment = other.step(elapsed_ms=10)
    output.prefilled(moment, 12)
    output.advanced(other.step(), 1)
    output.detokenized(0)
    output.close(clock())
    assert output.replicas == ["a:1", "b:2"]
    assert totals(output)["recovery"] == 110
    assert covered(output, clock.now_ms)


def test_what_is_lost_in_the_queue_was_queued_until_then(clock: Clock) -> None:
    output = TracedOutput()
    output.joined("a:1")
    clock.now_ms += 2
    output.admitted()
    clock.now_ms += 30
    output.recovering()
    clock.now_ms += 50
    output.close(clock())
    assert totals(output) == {"admission": 2, "queue": 30, "recovery": 50}


def test_one_that_never_came_to_a_step_was_in_the_queue(clock: Clock) -> None:
    output = TracedOutput()
    output.joined("a:1")
    clock.now_ms += 5
    output.admitted()
    clock.now_ms += 70
    output.close(clock())
    assert totals(output) == {"admission": 5, "queue": 70}


def test_one_that_no_step_had_for_long_waited(clock: Clock) -> None:
    output, engine = _started(clock)
    for _ in range(20):  # steps of others
        engine.step()
    output.advanced(engine.step(), 1)
    assert totals(output)["wait"] == 200


def test_a_late_frame_is_made_good_by_the_next(clock: Clock) -> None:
    output, engine = _started(clock)
    output.advanced(engine.step(way_ms=5), 1)
    output.advanced(engine.step(way_ms=-5), 1)
    output.detokenized(0)
    output.close(clock())
    assert totals(output)["forward"] == 18
    assert "engine_wire" not in totals(output)
    assert covered(output, clock.now_ms)


def test_an_early_frame_alone_leaves_no_part_below_zero(clock: Clock) -> None:
    output, engine = _started(clock)
    output.advanced(engine.step(way_ms=-5), 1)
    output.detokenized(0)
    output.close(clock())
    assert all(ns > 0 for segment in output.segments for ns in segment.parts.values())
    assert covered(output, clock.now_ms)


def test_a_long_output_takes_few_segments_and_loses_no_time(clock: Clock) -> None:
    output, engine = _started(clock)
    for step in range(20_000):
        if step % 700 == 0:
            output.preempted()
            output.prefilled(engine.step(), 50)
        output.advanced(engine.step(), 1)
    output.detokenized(0)
    output.close(clock())
    assert len(output.segments) <= MAX_SEGMENTS
    assert sum(each.num_steps for each in output.segments) == 1 + 20_000 + 29
    assert covered(output, clock.now_ms)
