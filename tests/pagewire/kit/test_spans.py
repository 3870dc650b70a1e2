"""Spans: nothing without an endpoint, and requests of one stream from begin to end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pagewire.kit import context
from pagewire.kit.request_spans import RequestSpans
from pagewire.kit.server import ServerConfig
from pagewire.kit.spans import NO_SPANS, Attributes, Spans, open_spans

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorded(Spans):
    """Keeps what is sent."""

    is_on = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Attributes]] = []

    def record(
        self, name: str, traceparent: str, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        assert start_ns <= end_ns
        self.sent.append((name, traceparent, dict(attributes)))


def test_a_span_has_what_was_noted_until_its_end() -> None:
    spans = Recorded()
    requests = RequestSpans(spans, "x.request")
    requests.begin(7, TRACEPARENT, "a")
    requests.note(7, {"tokens": 3})
    requests.note(8, {"tokens": 4})
    requests.end(7)
    requests.end(7)
    assert spans.sent == [("x.request", TRACEPARENT, {"gen_ai.request.id": "a", "tokens": 3})]


def test_what_is_left_ends_with_the_stream() -> None:
    spans = Recorded()
    requests = RequestSpans(spans, "x.request")
    for key in ("a", "b"):
        requests.begin(key, TRACEPARENT, key)
    requests.end_all()
    assert len(spans.sent) == 2


@pytest.mark.parametrize("traceparent", ["", "x", TRACEPARENT + "-y", TRACEPARENT.upper()])
def test_a_request_of_no_trace_has_no_span(traceparent: str) -> None:
    spans = Recorded()
    requests = RequestSpans(spans, "x.request")
    requests.begin("a", traceparent, "a")
    requests.end("a")
    assert spans.sent == []


def test_without_an_endpoint_nothing_is_sent_and_nothing_imported() -> None:
    assert open_spans("x", None) is NO_SPANS
    code = "import sys, gateway.server, scheduler_svc.server, tokenizer_svc.server\n"
    code += "sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


async def test_an_sdk_that_is_off_leaves_a_request_its_own_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    spans = open_spans("x", "http://127.0.0.1:1")
    span = spans.open("llm_request", TRACEPARENT, 1)
    assert span.traceparent in ("", TRACEPARENT)
    assert spans.open("llm_request", "", 1).traceparent == ""
    span.end(2, {"status": "200"})
    await spans.close()


@pytest.mark.parametrize("endpoint", ["localhost:4317", "", "grpc://x"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="http://localhost:4317"):
        ServerConfig(listen="127.0.0.1:0", otlp_traces_endpoint=endpoint)


@pytest.mark.parametrize(
    ("metadata", "joins"),
    [
        ([("Traceparent", TRACEPARENT)], True),
        ([("traceparent", TRACEPARENT.upper())], False),
        ([("traceparent", "00-" + "0" * 32 + "-b7ad6b7169203331-01")], False),
        ([("traceparent-bin", b"x"), ("x-request-id", "a")], False),
    ],
)
def test_only_a_valid_traceparent_joins_a_trace(
    metadata: list[tuple[str, str | bytes]], joins: bool
) -> None:
    assert context.joins_trace(metadata) is joins
