"""Servers with OpenAI's API: what is asked, what is read, and what goes wrong."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from pagewire.cli.bench.http_connection import Endpoint, exchange
from pagewire.cli.bench.model_name import first_model
from pagewire.cli.bench.openai_target import OpenAITarget
from pagewire.cli.bench.record import BenchRequestError, Job, RequestRecord
from tests.pagewire.cli.bench.scripted_server import (
    DONE,
    HEAD,
    MODELS,
    event,
    serving,
    text,
    usage,
)


def make_target(url: str, **settings: Any) -> OpenAITarget:
    values: dict[str, Any] = {
        "is_chat": False,
        "ignore_eos": True,
        "extra_body": {},
        "api_key": None,
        "timeout_s": 20.0,
        **settings,
    }
    return OpenAITarget(url, "tiny", **values)


async def ask(script: Sequence[bytes], job: Job | None = None, **settings: Any) -> RequestRecord:
    record = RequestRecord(0.0)
    async with serving(script) as server:
        await make_target(server.url, **settings).run(job or Job([1, 2], 4), record)
    return record


async def test_messages_with_output_are_noted_and_tokens_are_the_servers_count() -> None:
    script = [HEAD, text("a"), text(""), text("bc"), usage(2, 5, 1), DONE]
    record = await ask(script)
    assert len(record.arrivals_s) == 2
    assert record.arrivals_s == sorted(record.arrivals_s)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.num_cached_tokens) == (
        2,
        5,
        1,
    )
    assert record.is_counted_by_server


async def test_a_failure_without_words_is_none_the_less_a_failure() -> None:
    def fail(body: bytes, now_s: float) -> None:
        raise ArithmeticError

    async with serving([HEAD, text("a"), DONE]) as server:
        endpoint = Endpoint.of(server.url, "/v1/completions")
        with pytest.raises(BenchRequestError, match="ArithmeticError"):
            await exchange(endpoint, endpoint.request("POST", b"{}", {}), fail, 20.0)


async def test_without_usage_tokens_are_messages() -> None:
    record = await ask([HEAD, text("a") + text("b"), text("c"), DONE])
    assert (record.num_output_tokens, record.is_counted_by_server) == (3, False)


async def test_an_output_without_text_is_no_failure() -> None:
    end = event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    record = await ask([HEAD, end, usage(2, 1), DONE])
    assert (record.arrivals_s, record.num_output_tokens) == ([], 1)


async def test_chats_have_content_reasoning_and_calls() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "r"}, {"content": "c"}, {}]
    script = [event({"choices": [{"delta": delta}]}) for delta in deltas]
    record = await ask([HEAD, *script, DONE], Job("hello", 4), is_chat=True)
    assert len(record.arrivals_s) == 2


@pytest.mark.parametrize("is_chat", [False, True])
async def test_the_body_asks_for_what_the_job_says(is_chat: bool) -> None:
    async with serving([HEAD, text("a"), DONE]) as server:
        target = make_target(
            server.url, is_chat=is_chat, extra_body={"temperature": 1, "n": 2}, api_key="secret"
        )
        await target.run(Job("hello", 4), RequestRecord(0.0))
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    assert server.heads[0].startswith(f"POST {path} HTTP/1.1\r\n")
    assert "authorization: Bearer secret\r\n" in server.heads[0]
    asked = {"messages": [{"role": "user", "content": "hello"}]} if is_chat else {"prompt": "hello"}
    assert server.bodies == [
        {
            **asked,
            "model": "tiny",
            "max_tokens": 4,
            "temperature": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "n": 2,
        }
    ]


REFUSAL = b'HTTP/1.1 429 Too Many\r\ncontent-length: 14\r\n\r\n{"error":\n "x"}'


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([REFUSAL], "HTTP 429: "),
        ([HEAD, text("a"), event({"error": {"message": "lost"}}), DONE], "lost"),
        ([HEAD, text("a"), b"0\r\n\r\n"], "without"),
        ([HEAD, text("a")], "ended before"),
        ([HEAD, DONE], "neither output"),
        ([HEAD, event(b"[1]"), DONE], "no object"),
        ([HEAD, event(b"{"), DONE], "Expecting"),
        ([b"SMTP\r\n\r\n"], "does not speak HTTP"),
        ([HEAD, b"zz\r\n"], "is no number"),
        ([], "ended before"),
    ],
)
async def test_what_goes_wrong_is_said(script: Sequence[bytes], message: str) -> None:
    with pytest.raises(BenchRequestError) as caught:
        await ask(script)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_what_came_before_a_failure_stays_noted() -> None:
    record = RequestRecord(0.0)
    async with serving([HEAD, text("a"), text("b")]) as server:
        with pytest.raises(BenchRequestError):
            await make_target(server.url).run(Job("x", 4), record)
    assert len(record.arrivals_s) == 2


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BenchRequestError, match=f"127.0.0.1:{port}: "):
        await make_target(f"http://127.0.0.1:{port}").run(Job("x", 4), RequestRecord(0.0))


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BenchRequestError, match=r"after 0\.05 s"):
            await make_target(url, timeout_s=0.05).run(Job("x", 4), RequestRecord(0.0))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "grpc://h:1"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be http"):
        make_target(url)


async def test_the_models_name_is_the_servers_first_one() -> None:
    async with serving(MODELS) as server:
        assert await first_model(server.url, "secret") == "tiny"
    assert server.heads[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "authorization: Bearer secret" in server.heads[0]


async def test_a_server_without_models_asks_for_a_name() -> None:
    async with serving([MODELS[0], b"[" * 100]) as server:
        with pytest.raises(BenchRequestError, match="--model"):
            await first_model(server.url, None)
