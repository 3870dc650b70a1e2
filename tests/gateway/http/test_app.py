"""Routes, errors, ids, authentication and disconnects of the HTTP API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from gateway.config import RequestLimits
from pagewire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MAX_MODEL_LEN, MODEL, FakeScheduler
from tests.fakes.fake_tokenizer import FakeTokenizer
from tests.gateway.conftest import Gateway, GatewayFactory

COMPLETIONS = "/v1/completions"
CLIENT_GONE = 2
BODY = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}


async def test_models_lists_what_the_engine_serves(gateway: Gateway) -> None:
    model = (await gateway.http.get("/v1/models")).json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", MAX_MODEL_LEN)
    assert (await gateway.http.get(f"/v1/models/{MODEL}")).json() == model
    assert (await gateway.http.get("/v1/models/nope")).status_code == 404


async def test_health_ping_version_and_metrics_answer(gateway: Gateway) -> None:
    await gateway.http.post(COMPLETIONS, json=BODY)
    for path in ("/health", "/ping", "/version", "/metrics"):
        assert (await gateway.http.get(path)).status_code == 200
    metrics = (await gateway.http.get("/metrics")).text
    label = f'engine="0",model_name="{MODEL}"'
    assert f"pagewire:generation_tokens_total{{{label}}} 4.0" in metrics
    success = f'{{engine="0",finished_reason="length",model_name="{MODEL}"}}'
    assert f"pagewire:request_success_total{success} 1.0" in metrics


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"model": ', "JSON"),
        (b"[1]", "object"),
        (b"", "JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN"),
        (b'{"prompt": "a", "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "a", "temperature": 1e999}', "finite"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"prompt": ' + b"[" * 100_000, "nested"),
        # Just what Python's reader takes, and its writer would not, a few frames further down.
        *((b'{"x": ' + b"[" * n + b"]" * n + b"}", "nested") for n in (300, 930, 990)),
    ],
)
async def test_bad_bodies_are_400_in_openais_shape_and_the_next_request_works(
    gateway: Gateway, body: bytes, word: str
) -> None:
    answer = await gateway.http.post(COMPLETIONS, content=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert word in error["message"]
    assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", COMPLETIONS, 405), ("POST", "/health", 405), ("GET", "/nope", 404)],
)
async def test_the_router_answers_in_openais_shape(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    answer = await gateway.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


async def test_an_unknown_model_is_404_and_names_those_there_are(gateway: Gateway) -> None:
    answer = await gateway.http.post(COMPLETIONS, json=BODY | {"model": "nope"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert MODEL in answer.json()["error"]["message"]


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_413(run_gateway: GatewayFactory, declared: bool) -> None:
    body = json.dumps(BODY | {"prompt": "x" * 5000}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    async with run_gateway(limits=RequestLimits(max_body_bytes=1000)) as gateway:
        content: Any = body if declared else chunks()
        answer = await gateway.http.post(COMPLETIONS, content=content)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == 413
        assert answer.headers["x-error-reason"] == "BODY_TOO_LARGE"
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 200


async def test_a_prompt_over_the_limit_is_400_before_it_is_tokenized(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(limits=RequestLimits(max_prompt_bytes=10)) as gateway:
        answer = await gateway.http.post(COMPLETIONS, json=BODY | {"prompt": "x" * 11})
        assert answer.status_code == 400
        assert gateway.tokenizer.requests == []


async def test_every_answer_has_the_request_id_that_the_client_gave(gateway: Gateway) -> None:
    headers = {"x-request-id": "mine-1"}
    good = await gateway.http.post(COMPLETIONS, json=BODY, headers=headers)
    bad = await gateway.http.get("/nope", headers=headers)
    assert good.headers["x-request-id"] == bad.headers["x-request-id"] == "mine-1"
    assert good.json()["id"] == "cmpl-mine-1"
    assert gateway.scheduler.adds[0].request_id.startswith("mine-1-")
    assert (await gateway.http.get("/health")).headers["x-request-id"]


async def test_a_refusal_keeps_its_status_and_says_when_to_come_again(gateway: Gateway) -> None:
    gateway.scheduler.refusal = scheduler_pb2.RequestError(
        code=8, reason="QUEUE_FULL", message="the queue is full", retry_after_ms=1500
    )
    for stream in (False, True):
        answer = await gateway.http.post(COMPLETIONS, json=BODY | {"stream": stream})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.json()["error"]["code"] == 429
        assert answer.headers["x-error-reason"] == "QUEUE_FULL"


async def test_more_live_outputs_than_the_limit_are_429(run_gateway: GatewayFactory) -> None:
    async with run_gateway(limits=RequestLimits(max_live_outputs=1)) as gateway:
        answer = await gateway.http.post(COMPLETIONS, json=BODY | {"prompt": ["a", "b"]})
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"


async def test_without_an_engine_it_is_503_with_the_reason(run_gateway: GatewayFactory) -> None:
    async with run_gateway(wait=False, schedulers=("127.0.0.1:1",)) as gateway:
        for answer in (
            await gateway.http.get("/health"),
            await gateway.http.post(COMPLETIONS, json=BODY),
        ):
            assert answer.status_code == 503
            assert "no scheduler is connected" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "1"


async def test_a_tokenizer_of_another_vocabulary_is_not_ready_with_the_reason(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(tokenizer=FakeTokenizer("0" * 64), wait=False) as gateway:
        readiness = gateway.server.readiness
        async with asyncio.timeout(20):
            while "vocabulary" not in readiness.reason():
                await readiness.changed.wait()
                await asyncio.sleep(0)
        answer = await gateway.http.get("/health")
        assert answer.status_code == 503
        assert "vocabulary is not the engine's" in answer.json()["error"]["message"]
        assert (await gateway.http.post(COMPLETIONS, json=BODY)).status_code == 503


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_has_its_request_aborted(gateway: Gateway, stream: bool) -> None:
    scheduler = gateway.scheduler
    scheduler.go_on.clear()
    body = BODY | {"n": 2, "temperature": 1, "stream": stream}
    asking = asyncio.create_task(gateway.http.post(COMPLETIONS, json=body))
    await scheduler.until(lambda: len(scheduler.adds) == 2)
    asking.cancel()
    await scheduler.until(lambda: len(scheduler.aborts) == 2)
    expected = {(add.request_id, CLIENT_GONE) for add in scheduler.adds}
    assert set(scheduler.aborts) == expected
    await gateway.server.service.wait_idle()


async def test_an_error_in_mid_stream_is_an_event_and_done_follows(gateway: Gateway) -> None:
    gateway.scheduler.frames_left = 1
    body = BODY | {"stream": True, "max_tokens": 100}
    async with gateway.http.stream("POST", COMPLETIONS, json=body) as answer:
        lines = answer.aiter_lines()
        assert "choices" in await anext(lines)
        gateway.server.service.end_all()
        rest = [line async for line in lines if line]
    error = json.loads(rest[0].removeprefix("data: "))["error"]
    assert error["type"] == "service_unavailable_error"
    assert rest[-1] == "data: [DONE]"


async def test_a_bug_is_a_500_that_tells_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(gateway.server.readiness, "check", fail)
    answer = await gateway.http.post(COMPLETIONS, json=BODY)
    assert answer.status_code == 500
    assert "secret" not in answer.text and "KeyError" not in answer.text


async def test_the_openai_client_works_whole_and_streamed(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="none") as client:
        whole = await client.completions.create(model=MODEL, prompt="abc", max_tokens=4)
        assert whole.choices[0].text == "cbac"
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "<user>Hi\n<assistant>"[::-1][:5]
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5
        assert [model.id async for model in client.models.list()] == [MODEL]


async def test_the_openai_client_sees_errors_as_its_own(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key="none") as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nope", prompt="abc")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=MODEL, prompt="abc", max_tokens=10**6)
        assert caught.value.param == "max_tokens"


async def test_the_first_of_several_served_names_is_the_default(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(scheduler=FakeScheduler(models=("a", "b"))) as gateway:
        body = {key: value for key, value in BODY.items() if key != "model"}
        assert (await gateway.http.post(COMPLETIONS, json=body)).json()["model"] == "a"
        assert (await gateway.http.post(COMPLETIONS, json=BODY | {"model": "b"})).status_code == 200


async def test_a_passed_deadline_is_504(run_gateway: GatewayFactory) -> None:
    async with run_gateway() as gateway:
        gateway.scheduler.go_on.clear()
        service = gateway.server.service
        service._timeouts = replace(service._timeouts, request_timeout_s=0.2)
        answer = await gateway.http.post(COMPLETIONS, json=BODY)
        assert answer.status_code == 504
        await gateway.scheduler.until(lambda: gateway.scheduler.aborts)
        assert gateway.scheduler.aborts[0][1] == 3
