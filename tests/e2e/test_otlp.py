"""OpenTelemetry: one trace through all four services, for a collector of ours."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack, start_stack
from tests.fakes.otlp_collector import CollectedSpan, Collector, running_collector

SERVICES = {f"pagewire-{name}" for name in ("gateway", "tokenizer", "scheduler", "worker")}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
BODY = {"prompt": "one two three", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def stack(collector: Collector) -> Iterator[Stack]:
    flags = ("--device", "sim", "--otlp-traces-endpoint", collector.endpoint)
    # As OpenTelemetry's SDK has it: how long spans wait to be sent together, in milliseconds.
    with start_stack(*flags, env={"OTEL_BSP_SCHEDULE_DELAY": "100"}) as stack:
        yield stack


def ask(stack: Stack, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{stack.http_url}/v1/completions", json=BODY, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def services(collector: Collector, trace_id: str) -> set[str]:
    return {span.service for span in collector.of(trace_id)}


def named(spans: list[CollectedSpan], name: str) -> CollectedSpan:
    (span,) = (span for span in spans if span.name == name)
    return span


def test_a_sampled_trace_goes_through_all_services(stack: Stack, collector: Collector) -> None:
    traceparent = f"00-{TRACE_ID}-{PARENT_ID}-01"
    ask(stack, {"traceparent": traceparent, "x-request-id": "sampled"})
    collector.wait(lambda: services(collector, TRACE_ID) == SERVICES)
    spans = collector.of(TRACE_ID)
    request = named(spans, "llm_request")
    assert request.parent_id == PARENT_ID
    assert request.attributes["gen_ai.request.id"] == "sampled"
    assert request.attributes["gen_ai.usage.completion_tokens"] == 5
    others = [span for span in spans if span is not request]
    assert {span.parent_id for span in others} == {request.span_id}
    names = {"Encode", "scheduler.request", "worker.request", "worker.prefill", "client.write"}
    assert names <= {span.name for span in others}
    assert named(spans, "scheduler.request").attributes["finish_reason"] == "length"
    for span in others:
        if span.service == "pagewire-gateway":
            assert request.start_ns <= span.start_ns <= span.end_ns <= request.end_ns


def test_what_the_client_does_not_sample_is_not_sent(stack: Stack, collector: Collector) -> None:
    unsampled, after = "1" * 32, "2" * 32
    ask(stack, {"traceparent": f"00-{unsampled}-{PARENT_ID}-00"})
    ask(stack, {"traceparent": f"00-{after}-{PARENT_ID}-01"})
    collector.wait(lambda: services(collector, after) == SERVICES)
    assert unsampled not in collector.trace_ids


def test_without_a_clients_trace_one_begins_at_the_gateway(
    stack: Stack, collector: Collector
) -> None:
    known = collector.trace_ids

    def has_new() -> bool:
        new = collector.trace_ids - known
        return any(services(collector, trace_id) == SERVICES for trace_id in new)

    ask(stack, {"x-request-id": "root"})
    collector.wait(has_new)
    (new,) = collector.trace_ids - known
    request = named(collector.of(new), "llm_request")
    assert request.parent_id == ""
    assert request.attributes["gen_ai.request.id"] == "root"
