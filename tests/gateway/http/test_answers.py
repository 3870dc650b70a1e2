"""Streams to clients that stop reading, and to those that wait."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gateway.config import Timeouts
from gateway.generation import GenerationRequest, Output
from gateway.http import answers, event_stream
from gateway.http.answers import StreamedAnswer, WholeAnswer
from gateway.http.chat import ChatShape
from gateway.http.errors import ClientGoneError
from gateway.http.parameters import StreamOptions
from gateway.live_generation import Generation
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory


@pytest.mark.parametrize("part", [b'"role":"assistant"', b'"completion_tokens"', b"[DONE]"])
async def test_no_write_to_a_client_that_stops_reading_lasts_beyond_the_deadline(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(event_stream, "_LAST_WORDS_TIMEOUT_S", 0.1)
    stuck = False

    async def send(message: Any) -> None:
        nonlocal stuck
        stuck = stuck or part in message.get("body", b"")
        if stuck:
            await asyncio.Event().wait()

    async def receive() -> Any:
        return await asyncio.Event().wait()

    request = GenerationRequest("", ("abc",), {"max_tokens": 2}, timeout_s=1.0)
    answer = StreamedAnswer(
        gateway.server.service, request, ChatShape(), StreamOptions(include_usage=True)
    )
    async with asyncio.timeout(20):
        with pytest.raises(ClientGoneError):
            await answer({"type": "http"}, receive, send)
    assert stuck
    await gateway.server.service.wait_idle()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_that_waits_gets_comments(run_gateway: GatewayFactory, path: str) -> None:
    messages = [{"role": "user", "content": "abc"}]
    body = {"model": MODEL, "max_tokens": 2, "stream": True, "temperature": 0}
    body |= {"prompt": "abc"} if path == "/v1/completions" else {"messages": messages}
    timeouts = Timeouts(stream_keep_alive_s=0.05)
    async with run_gateway(timeouts=timeouts) as gateway:
        gateway.scheduler.go_on.clear()
        lines = []
        async with gateway.http.stream("POST", path, json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2:
                    gateway.scheduler.go_on.set()
    # A comment is a whole event, which ends with an empty line.
    assert lines[lines.index(": keep-alive") + 1] == ""
    assert lines[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("is_long", [True, False])
async def test_long_text_is_read_and_written_beside_the_event_loop(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """Text of thousands of broken calls takes a while, in which other clients are served."""
    if is_long:
        monkeypatch.setattr(answers, "MAX_INLINE_WEIGHT", 1)
    threads = []

    class Shape(ChatShape):
        def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
            threads.append(threading.current_thread())
            return super().whole(generation, outputs)

    async def send(message: Any) -> None:
        pass

    async def receive() -> Any:
        return await asyncio.Event().wait()

    request = GenerationRequest("", ("abc",), {"max_tokens": 16})
    await WholeAnswer(gateway.server.service, request, Shape())({"type": "http"}, receive, send)
    assert [thread is threading.main_thread() for thread in threads] == [not is_long]
