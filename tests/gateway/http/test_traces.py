"""Traces over HTTP: what is kept of a request, who may read it, and the line that is logged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from gateway.config import AccessConfig, GatewayConfig, RequestLimits
from gateway.http.openapi.document import document
from gateway.server import GatewayServer
from gateway.trace.config import NO_TRACES, TraceConfig
from pagewire.kit.config import ConfigError
from pagewire.v1 import inference_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory

COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
KEYS = AccessConfig(api_key=("ann=a", "ben=b", "root=r"))


async def trace_of(
    gateway: Gateway, request_id: str, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """The trace, which is there a moment after the answer's last byte."""
    path = f"/v1/requests/{request_id}/trace"
    async with asyncio.timeout(20):
        answer = await gateway.http.get(path, headers=headers)
        while answer.status_code == 404:
            answer = await gateway.http.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    trace: dict[str, Any] = answer.json()
    return trace


def check(schema: str, value: Any) -> None:
    components = document()["components"]
    jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": components}
    ).validate(value)


def covers(trace: dict[str, Any]) -> bool:
    """Whether the parts are the whole time but for what rounding takes."""
    return abs(sum(trace["parts"].values()) - trace["duration_s"]) < 1e-4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_has_a_trace_under_its_id(gateway: Gateway, stream: bool) -> None:
    headers = {"x-request-id": "mine/1"}
    answer = await gateway.http.post(COMPLETIONS, json=BODY | {"stream": stream}, headers=headers)
    assert answer.headers["x-request-id"] == "mine/1"
    trace = await trace_of(gateway, "mine%2F1")
    check("RequestTrace", trace)
    assert covers(trace)
    assert trace["route"] == COMPLETIONS
    assert (trace["status"], trace["error"]) == (200, None)
    assert (trace["prompt_tokens"], trace["output_tokens"]) == (4, 4)
    assert trace["finish_reasons"] == {"length": 1}
    assert 0 < trace["time_to_first_token_s"] <= trace["duration_s"]
    (output,) = trace["outputs"]
    assert sum(each["duration_s"] for each in output["segments"]) <= output["duration_s"] + 1e-4


async def test_the_list_has_recent_and_slowest_ones(gateway: Gateway) -> None:
    for request_id in ("one", "two"):
        await gateway.http.post(COMPLETIONS, json=BODY, headers={"x-request-id": request_id})
        await trace_of(gateway, request_id)
    listed = (await gateway.http.get("/v1/requests")).json()
    check("RequestTraces", listed)
    assert [each["id"] for each in listed["recent"]] == ["two", "one"]
    assert {each["id"] for each in listed["slowest"]} == {"one", "two"}
    assert len((await gateway.http.get("/v1/requests?limit=1")).json()["recent"]) == 1


@pytest.mark.parametrize("limit", ["0", "x", "1001", "-1", "", "9" * 5000])
async def test_a_bad_limit_is_400(gateway: Gateway, limit: str) -> None:
    answer = await gateway.http.get("/v1/requests", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "limit"


async def test_an_unknown_id_is_404_and_says_why(gateway: Gateway) -> None:
    answer = await gateway.http.get("/v1/requests/nope/trace")
    assert answer.status_code == 404
    assert "--trace-requests" in answer.json()["error"]["message"]


async def test_one_that_the_engine_refuses_is_kept_with_its_reason(gateway: Gateway) -> None:
    gateway.scheduler.refusal = scheduler_pb2.RequestError(
        code=8, reason="QUEUE_FULL", message="the queue is full"
    )
    answer = await gateway.http.post(COMPLETIONS, json=BODY, headers={"x-request-id": "r"})
    assert answer.status_code == 429
    trace = await trace_of(gateway, "r")
    assert (trace["status"], trace["error"]) == (429, "QUEUE_FULL")
    assert covers(trace)


async def test_a_request_that_found_no_room_pushes_no_trace_out(
    run_gateway: GatewayFactory,
) -> None:
    limits, trace = RequestLimits(max_live_outputs=1), TraceConfig(trace_requests=1)
    async with run_gateway(limits=limits, trace=trace) as gateway:
        await gateway.http.post(COMPLETIONS, json=BODY, headers={"x-request-id": "kept"})
        await trace_of(gateway, "kept")
        body, headers = BODY | {"prompt": ["a", "b"]}, {"x-request-id": "refused"}
        answer = await gateway.http.post(COMPLETIONS, json=body, headers=headers)
        assert answer.status_code == 429
        listed = (await gateway.http.get("/v1/requests")).json()
        assert [each["id"] for each in listed["recent"]] == ["kept"]


async def test_calls_over_grpc_are_kept_too(gateway: Gateway) -> None:
    request = inference_pb2.GenerateRequest(model=MODEL, text="abc")
    request.stopping.max_tokens = 4
    call = gateway.grpc.Generate(request, metadata=(("x-request-id", "g"),))
    assert [event async for event in call]
    trace = await trace_of(gateway, "g")
    assert trace["route"] == "/pagewire.v1.InferenceService/Generate"
    assert trace["status"] == "OK"
    assert covers(trace)


async def test_clients_see_their_own_and_readers_everybodys(run_gateway: GatewayFactory) -> None:
    trace = TraceConfig(trace_readers=("root",))
    async with run_gateway(access=KEYS, trace=trace) as gateway:

        def key(secret: str) -> dict[str, str]:
            return {"authorization": f"Bearer {secret}"}

        await gateway.http.post(COMPLETIONS, json=BODY, headers=key("a") | {"x-request-id": "q"})
        await trace_of(gateway, "q", key("a"))
        request = inference_pb2.GenerateRequest(model=MODEL, text="abc")
        request.stopping.max_tokens = 4
        metadata = (("x-request-id", "g"), ("authorization", "Bearer a"))
        assert [event async for event in gateway.grpc.Generate(request, metadata=metadata)]
        await trace_of(gateway, "g", key("a"))
        await trace_of(gateway, "q", key("r"))
        path = "/v1/requests/q/trace"
        assert (await gateway.http.get(path, headers=key("b"))).status_code == 404
        assert (await gateway.http.get(path)).status_code == 401
        listed = await gateway.http.get("/v1/requests", headers=key("b"))
        assert listed.json()["recent"] == listed.json()["slowest"] == []


@pytest.mark.parametrize("access", [KEYS, AccessConfig()])
def test_a_reader_that_no_key_has_is_refused_at_the_start(access: AccessConfig) -> None:
    config = GatewayConfig(access=access, trace=TraceConfig(trace_readers=("rood",)))
    with pytest.raises(ConfigError, match="--trace-readers rood"):
        GatewayServer(config)


@pytest.fixture
async def quiet(run_gateway: GatewayFactory) -> AsyncIterator[Gateway]:
    async with run_gateway(trace=NO_TRACES) as gateway:
        yield gateway


async def test_off_means_404_and_answers_as_ever(quiet: Gateway) -> None:
    assert (await quiet.http.post(COMPLETIONS, json=BODY)).status_code == 200
    for path in ("/v1/requests", "/v1/requests/x/trace"):
        answer = await quiet.http.get(path)
        assert answer.status_code == 404
        assert "--trace-requests" in answer.json()["error"]["message"]


@pytest.mark.parametrize("trace", [TraceConfig(), NO_TRACES])
async def test_one_line_is_logged_at_the_end_without_the_prompt(
    run_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture, trace: TraceConfig
) -> None:
    caplog.set_level(logging.INFO, "gateway.request")
    body = BODY | {"prompt": "a secret of mine"}
    headers = {"authorization": "Bearer a", "x-request-id": "q"}
    async with run_gateway(access=KEYS, trace=trace) as gateway:
        await gateway.http.post(COMPLETIONS, json=body, headers=headers)
    (line,) = (each.msg for each in caplog.records if each.name == "gateway.request")
    assert isinstance(line, dict)
    assert "secret of mine" not in json.dumps(line)
    said = {name: line[name] for name in ("event", "request_id", "client", "model", "status")}
    assert said == {
        "event": "request",
        "request_id": "q",
        "client": "ann",
        "model": MODEL,
        "status": 200,
    }
    assert (line["prompt_tokens"], line["output_tokens"]) == (17, 4)
    assert line["e2e_s"] >= line["time_to_first_token_s"] > 0
    assert bool(line["parts_ms"]) is (trace is not NO_TRACES)
