"""Bad input on each endpoint gives the right error and harms nothing: the next request works."""

import json
from typing import Any

import grpc
import httpx
import pytest

from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.e2e.stack import Stack

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
ONE_MEGABYTE = "word " * 200_000


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "prompt": "Hello", "max_tokens": 4} | fields


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": MESSAGES, "max_tokens": 4} | fields


HTTP_CASES = [
    pytest.param(COMPLETIONS, b'{"model": ', 400, None, id="broken JSON"),
    pytest.param(COMPLETIONS, b"[1, 2]", 400, None, id="not an object"),
    pytest.param(COMPLETIONS, b"\xff\xfe", 400, None, id="not UTF-8"),
    pytest.param(COMPLETIONS, completion(model="nope"), 404, "model", id="unknown model"),
    pytest.param(COMPLETIONS, completion(prompt=[49152]), 400, "prompt", id="token id too large"),
    pytest.param(COMPLETIONS, completion(prompt=[-1]), 400, "prompt", id="negative token id"),
    pytest.param(COMPLETIONS, completion(prompt=[]), 400, "prompt", id="empty prompt"),
    pytest.param(
        COMPLETIONS, completion(prompt={"a": 1}), 400, "prompt", id="prompt of wrong type"
    ),
    pytest.param(
        COMPLETIONS, completion(max_tokens=10**6), 400, "max_tokens", id="beyond the context"
    ),
    pytest.param(COMPLETIONS, completion(max_tokens=0), 400, "max_tokens", id="no tokens"),
    pytest.param(
        COMPLETIONS, completion(max_tokens="4"), 400, "max_tokens", id="text for a number"
    ),
    pytest.param(COMPLETIONS, completion(max_tokens=2.5), 400, "max_tokens", id="a fraction"),
    pytest.param(
        COMPLETIONS,
        b'{"model": "smollm2", "prompt": "Hello", "temperature": NaN}',
        400,
        None,
        id="NaN",
    ),
    pytest.param(
        COMPLETIONS,
        b'{"model": "smollm2", "prompt": "Hello", "temperature": 1e999}',
        400,
        None,
        id="infinity",
    ),
    pytest.param(COMPLETIONS, completion(temperature=3), 400, "temperature", id="too hot"),
    pytest.param(COMPLETIONS, completion(top_p=0), 400, "top_p", id="top_p of zero"),
    pytest.param(COMPLETIONS, completion(top_k=2**31), 400, "top_k", id="top_k of 32 bits"),
    pytest.param(COMPLETIONS, completion(top_k=2**40), 400, "top_k", id="top_k beyond 32 bits"),
    pytest.param(
        COMPLETIONS,
        completion(min_tokens=2**40, max_tokens=None),
        400,
        "min_tokens",
        id="min_tokens beyond 32 bits",
    ),
    pytest.param(
        COMPLETIONS, completion(max_tokens=2**40), 400, "max_tokens", id="max_tokens beyond 32 bits"
    ),
    pytest.param(COMPLETIONS, completion(n=2**40), 400, "n", id="n beyond 32 bits"),
    pytest.param(COMPLETIONS, completion(seed=2**64), 400, "seed", id="seed beyond 64 bits"),
    pytest.param(
        COMPLETIONS, completion(priority=2**31), 400, "priority", id="priority beyond 32 bits"
    ),
    pytest.param(
        COMPLETIONS, completion(priority=1), 400, "priority", id="priority where none counts"
    ),
    pytest.param(
        COMPLETIONS, completion(prompt=[2**40]), 400, "prompt", id="token id beyond 32 bits"
    ),
    pytest.param(
        COMPLETIONS,
        completion(stop_token_ids=[2**40]),
        400,
        "stop_token_ids",
        id="stop token id beyond 32 bits",
    ),
    pytest.param(
        COMPLETIONS,
        completion(allowed_token_ids=[2**40]),
        400,
        "allowed_token_ids",
        id="allowed token id beyond 32 bits",
    ),
    pytest.param(
        COMPLETIONS,
        completion(logit_bias={str(2**40): 1}),
        400,
        "logit_bias",
        id="biased token id beyond 32 bits",
    ),
    pytest.param(COMPLETIONS, completion(prompt="\ud800"), 400, "prompt", id="half a character"),
    pytest.param(
        COMPLETIONS, completion(stop=["\ud800"]), 400, "stop", id="half a character as a stop"
    ),
    pytest.param(COMPLETIONS, completion(cache_salt="\ud800"), 400, "cache_salt", id="half a salt"),
    pytest.param(COMPLETIONS, completion(model="\ud800"), 400, "model", id="half a model"),
    pytest.param(COMPLETIONS, completion(stop=[""]), 400, "stop", id="empty stop string"),
    pytest.param(COMPLETIONS, completion(stream="yes"), 400, "stream", id="text for a flag"),
    pytest.param(COMPLETIONS, completion(suffix="x"), 400, "suffix", id="not supported"),
    pytest.param(COMPLETIONS, completion(prompt=ONE_MEGABYTE), 400, None, id="1 MB prompt"),
    pytest.param(CHAT, b"{]", 400, None, id="chat: broken JSON"),
    pytest.param(CHAT, chat(messages=[]), 400, "messages", id="chat: empty messages"),
    pytest.param(CHAT, chat(messages="Hi"), 400, "messages", id="chat: text for messages"),
    pytest.param(CHAT, chat(messages=[{"content": "x"}]), 400, None, id="chat: no role"),
    pytest.param(CHAT, chat(model=7), 400, "model", id="chat: number for a model"),
    pytest.param(CHAT, chat(model="nope"), 404, "model", id="chat: unknown model"),
    pytest.param(CHAT, chat(max_tokens=10**6), 400, None, id="chat: beyond the context"),
    pytest.param(
        CHAT,
        chat(messages=[{"role": "user", "content": ONE_MEGABYTE}]),
        400,
        None,
        id="chat: 1 MB prompt",
    ),
    pytest.param(CHAT, chat(seed="x"), 400, "seed", id="chat: text for a seed"),
    pytest.param(CHAT, chat(top_k=2**40), 400, "top_k", id="chat: top_k beyond 32 bits"),
    pytest.param(
        CHAT,
        chat(max_completion_tokens=2**40),
        400,
        "max_completion_tokens",
        id="chat: max_completion_tokens beyond 32 bits",
    ),
    pytest.param(
        CHAT,
        chat(messages=[{"role": "user", "content": "\ud800"}]),
        400,
        "messages[0].content",
        id="chat: half a character",
    ),
]


def post(url: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        url, content=content, headers={"content-type": "application/json"}, timeout=60
    )


@pytest.mark.parametrize(("path", "body", "status", "param"), HTTP_CASES)
def test_http_gives_the_openai_error_and_goes_on(
    sim_stack: Stack, path: str, body: Any, status: int, param: str | None
) -> None:
    response = post(sim_stack.http_url + path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"] and "Traceback" not in error["message"]
    assert error["type"]
    if param is not None:
        assert error["param"] is not None and error["param"].startswith(param)
    good = post(sim_stack.http_url + COMPLETIONS, completion())
    assert good.status_code == 200, good.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", CHAT, 405), ("GET", "/nope", 404)])
def test_a_wrong_route_gives_the_openai_error(
    sim_stack: Stack, method: str, path: str, status: int
) -> None:
    response = httpx.request(method, sim_stack.http_url + path, timeout=10)
    assert response.status_code == status
    assert response.json()["error"]["message"]


def _text(text: str, **fields: Any) -> inference_pb2.GenerateRequest:
    stopping = inference_pb2.StoppingOptions(max_tokens=4)
    return inference_pb2.GenerateRequest(**({"text": text, "stopping": stopping} | fields))


GRPC_CASES = [
    pytest.param(
        "Generate", _text("Hi", model="nope"), grpc.StatusCode.NOT_FOUND, id="unknown model"
    ),
    pytest.param(
        "Generate",
        inference_pb2.GenerateRequest(),
        grpc.StatusCode.INVALID_ARGUMENT,
        id="no prompt",
    ),
    pytest.param(
        "Generate",
        inference_pb2.GenerateRequest(token_ids=common_pb2.TokenIds(ids=[49152])),
        grpc.StatusCode.INVALID_ARGUMENT,
        id="token id out of range",
    ),
    pytest.param(
        "Generate",
        _text("Hi", stopping=inference_pb2.StoppingOptions(max_tokens=10**6)),
        grpc.StatusCode.INVALID_ARGUMENT,
        id="beyond the context",
    ),
    pytest.param(
        "Generate",
        _text("Hi", sampling=inference_pb2.SamplingOptions(temperature=float("nan"))),
        grpc.StatusCode.INVALID_ARGUMENT,
        id="NaN",
    ),
    pytest.param(
        "Generate", _text(ONE_MEGABYTE), grpc.StatusCode.INVALID_ARGUMENT, id="1 MB prompt"
    ),
    *(
        pytest.param("Generate", _text("Hi", **fields), grpc.StatusCode.INVALID_ARGUMENT, id=name)
        for name, fields in (
            ("largest top_k", {"sampling": inference_pb2.SamplingOptions(top_k=2**32 - 1)}),
            ("largest n", {"sampling": inference_pb2.SamplingOptions(n=2**32 - 1)}),
            (
                "largest max_tokens",
                {"stopping": inference_pb2.StoppingOptions(max_tokens=2**32 - 1)},
            ),
            (
                "largest min_tokens",
                {"stopping": inference_pb2.StoppingOptions(min_tokens=2**32 - 1)},
            ),
            (
                "largest stop token id",
                {"stopping": inference_pb2.StoppingOptions(stop_token_ids=[2**32 - 1])},
            ),
            ("long salt", {"cache": inference_pb2.CacheOptions(salt="x" * 1025)}),
        )
    ),
    pytest.param(
        "Chat", inference_pb2.ChatRequest(), grpc.StatusCode.INVALID_ARGUMENT, id="no messages"
    ),
    pytest.param(
        "Chat",
        inference_pb2.ChatRequest(
            messages=[inference_pb2.ChatMessage(role="user", content="Hi")],
            template_arguments_json="{",
        ),
        grpc.StatusCode.INVALID_ARGUMENT,
        id="broken template arguments",
    ),
]


@pytest.mark.parametrize(("method", "request_message", "code"), GRPC_CASES)
def test_grpc_gives_the_status_with_a_reason_and_goes_on(
    sim_stack: Stack, method: str, request_message: Any, code: grpc.StatusCode
) -> None:
    with grpc.insecure_channel(sim_stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(getattr(stub, method)(request_message, timeout=60))
        assert caught.value.code() is code
        assert "Traceback" not in caught.value.details()
        trailers = dict(caught.value.trailing_metadata())
        assert b"type.googleapis.com/google.rpc.ErrorInfo" in trailers["grpc-status-details-bin"]
        events = list(stub.Generate(_text("Hi"), timeout=60))
    assert events[-1].WhichOneof("event") == "usage"
