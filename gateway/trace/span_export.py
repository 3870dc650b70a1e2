"""A finished trace as OpenTelemetry spans: the request's own, and one below it for each stretch.

Attributes have vLLM's names where it has any. Names are `box.part`, as in the trace itself.
"""

from __future__ import annotations

from gateway.trace.output_trace import Segment
from gateway.trace.parts import BOX_OF
from gateway.trace.report import facts, part_totals
from gateway.trace.request_trace import RequestTrace
from pagewire.kit.spans import Attributes, Spans

_NS_PER_S = 1e9


def send_spans(spans: Spans, trace: RequestTrace) -> None:
    """Send a trace that is closed; if it is not sampled, nothing goes out."""
    to_unix_ns = trace.created_ns - trace.start_ns
    parent = trace.span.traceparent
    for span in trace.spans:
        start_ns = span.start_ns + to_unix_ns
        spans.record(_name(span.name), parent, start_ns, start_ns + span.duration_ns, {})
    for segment in trace.segments:
        spans.record(
            _name(segment.kind),
            parent,
            segment.start_ns + to_unix_ns,
            segment.end_ns + to_unix_ns,
            _segment_attributes(segment),
        )
    end_ns = trace.start_ns + trace.duration_ns + to_unix_ns
    trace.span.end(end_ns, _attributes(trace), trace.error)


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
