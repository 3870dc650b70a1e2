"""What a client that stops reading can hold up, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.generation import GenerationRequest
from gateway.http import answers
from gateway.http.answers import StreamedAnswer
from gateway.http.chat import ChatShape
from gateway.http.errors import ClientGoneError
from gateway.http.parameters import StreamOptions
from tests.gateway.conftest import Gateway


@pytest.mark.parametrize("part", [b'"role":"assistant"', b'"completion_tokens"', b"[DONE]"])
async def test_no_write_to_a_client_that_stops_reading_lasts_beyond_the_deadline(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(answers, "_LAST_WORDS_TIMEOUT_S", 0.1)
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
