"""Keys and limits of a whole gateway, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.config import AccessConfig, GatewayConfig
from gateway.trace.config import TraceConfig
from pagewire.kit.channels import open_channel
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.errors import from_rpc_error
from pagewire.v1 import inference_pb2, scheduler_pb2
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory

COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
GENERATE = inference_pb2.GenerateRequest(
    text="abc", stopping=inference_pb2.StoppingOptions(max_tokens=4)
)
KEYED = AccessConfig(api_key=("team-a=s1", "team-b=s2"))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def metadata(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


async def grpc_error(call: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", COMPLETIONS), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
        ("GET", "/metrics"), ("GET", "/version"), ("GET", "/nope"), ("GET", "/healthz"),
        ("GET", "/static"), ("GET", "/health/x"),
    ],
)  # fmt: skip
async def test_over_http_all_but_health_and_the_page_needs_a_key(
    run_gateway: GatewayFactory, method: str, path: str
) -> None:
    async with run_gateway(access=KEYED, wait=False) as gateway:
        for headers in ({}, bearer("s3"), {"authorization": "s1"}, {"x-api-key": "team-b=s1"}):
            answer = await gateway.http.request(method, path, headers=headers)
            assert answer.status_code == 401
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
        for headers in (bearer("s1"), {"x-api-key": "s2"}):
            assert (await gateway.http.request(method, path, headers=headers)).status_code != 401


async def test_health_the_page_and_preflights_need_no_key(run_gateway: GatewayFactory) -> None:
    async with run_gateway(access=KEYED) as gateway:
        for path in ("/health", "/ping"):
            assert (await gateway.http.get(path)).status_code == 200
        for path in ("/", "/static/nothing.js"):
            assert (await gateway.http.get(path)).status_code in (200, 404)
        for path in ("/static/..%2fv1/models", "//v1/models", "/v1%2fmodels", "/health/..%2fload"):
            assert (await gateway.http.get(path)).status_code in (401, 404)
        preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
        answer = await gateway.http.options(COMPLETIONS, headers=preflight)
        assert answer.status_code == 200


async def test_over_grpc_all_but_health_needs_a_key(run_gateway: GatewayFactory) -> None:
    async with run_gateway(access=KEYED) as gateway:
        stub = gateway.grpc
        for given in ((), metadata("s3"), (("authorization", "s1"),)):
            for call in (
                stub.Generate(GENERATE, metadata=given),
                stub.ListModels(inference_pb2.ListModelsRequest(), metadata=given),
                stub.Embed(inference_pb2.EmbedRequest(), metadata=given),
            ):
                error = await grpc_error(call)
                assert (error.code, error.reason) == (
                    grpc.StatusCode.UNAUTHENTICATED,
                    "INVALID_API_KEY",
                )
        events = [event async for event in stub.Generate(GENERATE, metadata=metadata("s2"))]
        assert events[-1].HasField("usage")
        health = await gateway.health.Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_methods_that_do_not_exist_leave_no_figures(run_gateway: GatewayFactory) -> None:
    """Strangers choose their names; each would be one more line of the metrics, for good."""
    async with (
        run_gateway(access=KEYED) as gateway,
        open_channel(gateway.server.grpc_server.address) as channel,
    ):
        for path in ("/pagewire.v1.InferenceService/Nope", "/a.B/Nope"):
            for given in ((), metadata("s1")):
                error = await grpc_error(channel.unary_unary(path)(b"", metadata=given))
                assert error.code is grpc.StatusCode.UNIMPLEMENTED
        figures = (await gateway.http.get("/metrics", headers=bearer("s1"))).text
    assert "rpc" in figures and "Nope" not in figures


async def test_reflection_needs_a_key_as_well(run_gateway: GatewayFactory) -> None:
    async with (
        run_gateway(access=KEYED) as gateway,
        open_channel(gateway.server.grpc_server.address) as channel,
    ):
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        error = await grpc_error(ask(iter([question])))
        assert error.code is grpc.StatusCode.UNAUTHENTICATED
        answer = await ask(iter([question]), metadata=metadata("s1")).read()
        assert answer.HasField("list_services_response")


async def test_names_and_never_keys_are_in_logs_and_metrics(
    run_gateway: GatewayFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with run_gateway(access=AccessConfig(api_key=("team-a=s3cr3t",))) as gateway:
        await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer("s3cr3t"))
        await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer("wr0ng"))
        [_ async for _ in gateway.grpc.Generate(GENERATE, metadata=metadata("s3cr3t"))]
        await grpc_error(gateway.grpc.Generate(GENERATE, metadata=metadata("wr0ng")))
        figures = (await gateway.http.get("/metrics", headers=bearer("s3cr3t"))).text
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    clients = {(line["event"], line.get("client")) for line in lines}
    assert {("http", "team-a"), ("http", None), ("rpc", "team-a"), ("rpc", None)} <= clients
    assert 'pagewire:client_requests_total{client="team-a"} 2.0' in figures
    assert 'pagewire:client_tokens_total{client="team-a",kind="generation"} 8.0' in figures
    assert "pagewire:unauthenticated_total 2.0" in figures
    everything = figures + json.dumps(lines, default=repr) + caplog.text
    assert "s3cr3t" not in everything and "wr0ng" not in everything


async def test_a_clients_limit_holds_over_both_apis_and_for_no_other(
    run_gateway: GatewayFactory,
) -> None:
    access = AccessConfig(api_key=KEYED.api_key, max_concurrent_requests=1)
    async with run_gateway(access=access) as gateway:
        scheduler = gateway.scheduler
        scheduler.go_on.clear()
        body = BODY | {"stream": True}
        asking = asyncio.create_task(
            gateway.http.post(COMPLETIONS, json=body, headers=bearer("s1"))
        )
        await scheduler.until(lambda: scheduler.adds)
        error = await grpc_error(gateway.grpc.Generate(GENERATE, metadata=metadata("s1")))
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (error.reason, error.retry_after_s) == ("CONCURRENCY_LIMIT", 1.0)
        refused = await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer("s1"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        models = await gateway.http.get("/v1/models", headers=bearer("s1"))
        assert models.status_code == 200
        await gateway.grpc.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata("s1"))
        scheduler.go_on.set()
        other = gateway.grpc.Generate(GENERATE, metadata=metadata("s2"))
        assert [event async for event in other]
        assert (await asking).status_code == 200
        again = await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer("s1"))
        assert again.status_code == 200


async def test_a_client_that_leaves_gives_its_place_back(run_gateway: GatewayFactory) -> None:
    async with run_gateway(access=AccessConfig(max_concurrent_requests=1)) as gateway:
        scheduler = gateway.scheduler
        scheduler.go_on.clear()
        for number, leave in enumerate(("http", "grpc"), 1):
            if leave == "http":
                asking: Any = asyncio.create_task(gateway.http.post(COMPLETIONS, json=BODY))
            else:
                asking = gateway.grpc.Generate(GENERATE)
            await scheduler.until(lambda number=number: len(scheduler.adds) == number)
            asking.cancel()
            await scheduler.until(lambda number=number: len(scheduler.aborts) == number)
            await gateway.server.service.wait_idle()
        scheduler.go_on.set()
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200


async def test_rates_refuse_with_the_time_to_come_again(run_gateway: GatewayFactory) -> None:
    access = AccessConfig(max_requests_per_minute=2)
    async with run_gateway(access=access) as gateway:
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200
        assert [event async for event in gateway.grpc.Generate(GENERATE)]
        refused = await gateway.http.post(COMPLETIONS, json=BODY)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-error-reason"] == "REQUEST_RATE_LIMIT"
        error = await grpc_error(gateway.grpc.Generate(GENERATE))
        assert error.reason == "REQUEST_RATE_LIMIT"
        assert 0 < error.retry_after_s <= 30


async def test_used_tokens_count_against_the_rate(run_gateway: GatewayFactory) -> None:
    async with run_gateway(access=AccessConfig(max_tokens_per_minute=7)) as gateway:
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200
        refused = await gateway.http.post(COMPLETIONS, json=BODY)
        assert refused.headers["x-error-reason"] == "TOKEN_RATE_LIMIT"


async def test_what_the_engine_refuses_counts_for_no_rate(run_gateway: GatewayFactory) -> None:
    access = AccessConfig(max_requests_per_minute=2, max_tokens_per_minute=9)
    async with run_gateway(access=access) as gateway:
        scheduler = gateway.scheduler
        for status, code in ((429, "RESOURCE_EXHAUSTED"), (400, "INVALID_ARGUMENT")):
            number = grpc.StatusCode[code].value[0]
            scheduler.refusal = scheduler_pb2.RequestError(code=number, reason="TOLD")
            if status == 429:
                refused = await gateway.http.post(COMPLETIONS, json=BODY)
                assert (refused.status_code, refused.headers["x-error-reason"]) == (status, "TOLD")
            else:
                error = await grpc_error(gateway.grpc.Generate(GENERATE))
                assert (error.code.name, error.reason) == (code, "TOLD")
        scheduler.refusal = None
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200
        assert [event async for event in gateway.grpc.Generate(GENERATE)]
        refused = await gateway.http.post(COMPLETIONS, json=BODY)
        assert refused.headers["x-error-reason"] == "TOKEN_RATE_LIMIT"
        figures = (await gateway.http.get("/metrics")).text
    assert 'pagewire:client_tokens_total{client="anonymous",kind="generation"} 8.0' in figures


async def test_a_client_reads_its_own_figures_and_a_reader_everybodys(
    run_gateway: GatewayFactory,
) -> None:
    trace = TraceConfig(trace_readers=("team-b",))
    async with run_gateway(access=KEYED, trace=trace) as gateway:
        for secret in ("s1", "s2"):
            await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer(secret))
        own = (await gateway.http.get("/metrics", headers=bearer("s1"))).text
        everybodys = (await gateway.http.get("/metrics", headers=bearer("s2"))).text
    for name in ("client_requests_total", "client_tokens_total", "client_requests_running"):
        assert f'pagewire:{name}{{client="team-a"' in own
        assert f'pagewire:{name}{{client="team-a"' in everybodys
        assert f'pagewire:{name}{{client="team-b"' in everybodys
    assert "team-b" not in own
    assert "pagewire:gateway_live_outputs" in own


async def test_a_kept_response_is_found_by_the_client_that_made_it_alone(
    run_gateway: GatewayFactory,
) -> None:
    body = {"model": MODEL, "input": "abc", "max_output_tokens": 4}
    async with run_gateway(access=KEYED, trace=TraceConfig(trace_readers=("team-b",))) as gateway:
        http = gateway.http
        for stream in (False, True):
            made = await http.post("/v1/responses", json=body, headers=bearer("s1"))
            path, previous = f"/v1/responses/{made.json()['id']}", made.json()["id"]
            follow = body | {"previous_response_id": previous, "stream": stream}
            refused = await http.post("/v1/responses", json=follow, headers=bearer("s2"))
            assert refused.headers["x-error-reason"] == "RESPONSE_NOT_FOUND"
            for method, where in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)):
                answer = await http.request(method, where, headers=bearer("s2"))
                assert answer.status_code == 404
                answer = await http.request(method, where, headers=bearer("s1"))
                assert answer.status_code == 200


async def test_keys_of_a_file_are_taken_with_their_limits(
    gateway: Gateway, run_gateway: GatewayFactory, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("team-c=s3 requests_per_minute=1\n")
    access = AccessConfig(api_key=KEYED.api_key, api_key_file=path)
    async with run_gateway(access=access) as gateway:
        statuses = [
            (await gateway.http.post(COMPLETIONS, json=BODY, headers=bearer(secret))).status_code
            for secret in ("s3", "s3", "s1", "s1")
        ]
        assert statuses == [200, 429, 200, 200]
    with pytest.raises(ConfigError, match="No such file"):
        AccessConfig(api_key_file=tmp_path / "absent").keys()


@pytest.mark.parametrize("setting", ["s3cret", "team-a=s3cret"])
async def test_one_variable_serves_the_gateway_and_the_command_line(
    run_gateway: GatewayFactory, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("PAGEWIRE_API_KEY", setting)
    access = load_config(GatewayConfig, prog="gateway", argv=[]).access
    async with run_gateway(access=access) as gateway:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pagewire.cli", "complete", "abc"),
            *("--target", gateway.server.grpc_server.address, "--max-tokens", "2"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        text, error = await process.communicate()
    assert (process.returncode, error.decode()) == (0, "")
    assert text.strip()
