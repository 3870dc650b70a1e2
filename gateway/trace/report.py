"""A finished trace as the API shows it. Seconds count from the request's begin at the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.trace.output_trace import Segment, TracedOutput
from gateway.trace.parts import BOX_OF
from gateway.trace.request_trace import RequestTrace

_NS_PER_S = 1e9


def summary(trace: RequestTrace) -> dict[str, Any]:
    """Return what lists show of a trace that is closed."""
    first_ns = trace.first_output_ns
    return {
        "id": trace.request_id,
        "object": "request.trace",
        "created": round(trace.created_ns / _NS_PER_S, 3),
        **facts(trace),
        "duration_s": seconds(trace.duration_ns),
        "time_to_first_token_s": None if first_ns is None else seconds(first_ns - trace.start_ns),
        "parts": {name: seconds(ns) for name, ns in part_totals(trace).items()},
    }


def facts(trace: RequestTrace) -> dict[str, Any]:
    """Return what is known of a request besides times."""
    outputs = trace.outputs
    return {
        **trace.facts,
        "finish_reasons": dict(trace.finish_reasons),
        "error": trace.error or None,
        "replicas": list(dict.fromkeys(name for each in outputs for name in each.replicas)),
        "preemptions": sum(output.num_preemptions for output in outputs),
        "recoveries": sum(output.num_recoveries for output in outputs),
    }


def whole(trace: RequestTrace) -> dict[str, Any]:
    """Return all that is kept of a trace that is closed."""
    short = summary(trace)
    return {
        **short,
        "boxes": {name: BOX_OF[name] for name in short["parts"]},
        "spans": [
            {
                "part": span.name,
                "start_s": seconds(span.start_ns - trace.start_ns),
                "duration_s": seconds(span.duration_ns),
            }
            for span in trace.spans
        ],
        "outputs": [_output(trace, index, each) for index, each in enumerate(trace.outputs)],
    }


def part_totals(trace: RequestTrace) -> dict[str, int]:
    """Return the nanoseconds of each part, in the order of a request's way.

    Of several outputs those of the one that ended last, so that the parts are the whole time.
    """
    totals: dict[str, int] = {}
    for span in trace.spans:
        totals[span.name] = totals.get(span.name, 0) + span.duration_ns
    for segment in trace.segments:
        for name, ns in segment.parts.items():
            totals[name] = totals.get(name, 0) + ns
    return {name: totals[name] for name in BOX_OF if name in totals}


def _output(trace: RequestTrace, index: int, output: TracedOutput) -> dict[str, Any]:
    end_ns = output.engine_end_ns if output.text_end_ns is None else output.text_end_ns
    return {
        "index": index,
        "is_last": output is trace.last_output,
        "replicas": list(output.replicas),
        "preemptions": output.num_preemptions,
        "recoveries": output.num_recoveries,
        "start_s": seconds(output.start_ns - trace.start_ns),
        "duration_s": seconds(end_ns - output.start_ns),
        "segments": list(_segments(trace, output.segments)),
    }


def _segments(trace: RequestTrace, segments: Iterable[Segment]) -> Iterable[dict[str, Any]]:
    for segment in segments:
        yield {
            "kind": segment.kind,
            "start_s": seconds(segment.start_ns - trace.start_ns),
            "duration_s": seconds(segment.duration_ns),
            "steps": segment.num_steps,
            "tokens": segment.num_tokens,
            "parts": {name: seconds(ns) for name, ns in segment.parts.items()},
        }


def seconds(ns: int) -> float:
    """Return a time as the API shows it."""
    return round(ns / _NS_PER_S, 6)
