"""What is counted of HTTP and of calls of tools, and the load in the answer's header."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.engine_pool import EnginePool
from gateway.http.orca import load_headers, named_load
from gateway.metrics import UNCOUNTED_ROUTES, GatewayMetrics
from pagewire.v1.scheduler_pb2 import EngineFigures, WatchLoadResponse
from tests.gateway.conftest import Gateway

LOAD = {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3}


def exposition(metrics: GatewayMetrics) -> str:
    return generate_latest(metrics.registry).decode()


async def test_answers_are_counted_by_route_and_those_to_machines_are_not(gateway: Gateway) -> None:
    body = {"prompt": "abc", "max_tokens": 2}
    assert (await gateway.http.post("/v1/completions", json=body)).status_code == 200
    assert (await gateway.http.post("/v1/completions", json={})).status_code == 400
    assert (await gateway.http.get("/nope")).status_code == 404
    for path in ("/health", "/load", "/version", "/ping"):
        await gateway.http.get(path)
    text = (await gateway.http.get("/metrics")).text
    route = 'handler="/v1/completions",method="POST"'
    assert f'http_requests_total{{{route},status="2xx"}} 1.0' in text
    assert f'http_requests_total{{{route},status="4xx"}} 1.0' in text
    assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in text
    assert f"http_request_duration_seconds_count{{{route}}} 2.0" in text
    assert 'pagewire:http_responses_total{handler="/v1/completions",status="400"} 1.0' in text
    assert not any(f'handler="{path}"' in text for path in UNCOUNTED_ROUTES)


def test_a_method_of_a_client_s_invention_is_no_label() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    metrics.http_answer("BREW", "none", 405, 0.1)
    metrics.http_refused(503)
    text = exposition(metrics)
    assert 'http_requests_total{handler="none",method="none",status="4xx"} 1.0' in text
    assert 'http_requests_total{handler="none",method="none",status="5xx"} 1.0' in text
    assert "BREW" not in text


CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 3,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
}


@pytest.mark.parametrize("stream", [False, True])
async def test_outputs_that_are_read_for_calls_are_counted(gateway: Gateway, stream: bool) -> None:
    gateway.scheduler.script = '[{"name": "f", "parameters": {}}]'
    answer = await gateway.http.post(
        "/v1/chat/completions", json=CHAT | {"max_tokens": 100, "stream": stream}
    )
    assert answer.status_code == 200, answer.text
    plain = {key: value for key, value in CHAT.items() if not key.startswith("tool")}
    await gateway.http.post("/v1/chat/completions", json=plain)
    text = (await gateway.http.get("/metrics")).text
    counted = [line for line in text.splitlines() if "parser_invocations_total{" in line]
    (line,) = counted
    mode = "streaming" if stream else "non_streaming"
    for label in (mode, "tool_call", "chat_completions"):
        assert f'"{label}"' in line
    assert line.endswith(" 1.0")


def pool_of(*loads: WatchLoadResponse | None) -> EnginePool:
    replicas = [SimpleNamespace(load=SimpleNamespace(message=load)) for load in loads]
    return cast(EnginePool, SimpleNamespace(replicas=replicas))


def told(waiting: int, usage: float) -> WatchLoadResponse:
    return WatchLoadResponse(
        num_requests_waiting=waiting, kv_cache_usage=usage, figures=EngineFigures()
    )


def test_the_load_is_that_of_all_engines_that_tell() -> None:
    pool = pool_of(told(1, 0.5), None, told(2, 0.0), WatchLoadResponse())
    assert named_load(pool) == LOAD
    assert named_load(pool_of(None)) == {}


def scope(asked: bytes, path: str = "/v1/completions", method: str = "POST") -> dict[str, Any]:
    headers = [(b"endpoint-load-metrics-format", asked)]
    return {"path": path, "method": method, "headers": headers}


def test_the_header_says_it_as_text_or_json() -> None:
    text = b"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3"
    assert load_headers(scope(b"text"), lambda: LOAD, 200) == [(b"endpoint-load-metrics", text)]
    ((_, value),) = load_headers(scope(b"JSON"), lambda: LOAD, 200)
    assert value.startswith(b"JSON ")
    assert json.loads(value[5:]) == {"named_metrics": LOAD}


@pytest.mark.parametrize(
    ("asked", "path", "load"),
    [
        (b"BINARY", "/v1/completions", LOAD),
        (b"", "/v1/completions", LOAD),
        (b"TEXT", "/v1/models", LOAD),
        (b"TEXT", "/v1/completions", {}),
    ],
)
def test_there_is_no_header_otherwise(asked: bytes, path: str, load: dict[str, float]) -> None:
    assert load_headers(scope(asked, path), lambda: load, 200) == []


@pytest.mark.parametrize(("method", "status"), [("POST", 401), ("POST", 429), ("OPTIONS", 200)])
def test_who_may_have_no_key_is_told_nothing(method: str, status: int) -> None:
    assert load_headers(scope(b"TEXT", method=method), lambda: LOAD, status) == []
