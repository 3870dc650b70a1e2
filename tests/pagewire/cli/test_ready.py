"""Tests of the line that says where the stack answers."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest

from pagewire.cli.addresses import Addresses
from pagewire.cli.ready import (
    count_serving,
    parse_ready_line,
    ready_line,
    tell_why_not_ready,
    watch_serving,
)
from pagewire.kit import health, server
from pagewire.kit.errors import QueueFullError
from pagewire.kit.health import HealthServicer
from pagewire.kit.tasks import cancel_and_wait
from tests.pagewire.kit.echo_service import SERVICE, start_echo

ADDRESSES = Addresses("127.0.0.1:8000", "127.0.0.1:50050", {}, {})


@pytest.mark.parametrize("wants_key", [False, True])
def test_the_curl_line_sends_a_key_where_one_is_wanted(wants_key: bool) -> None:
    line = ready_line(ADDRESSES, "it's", wants_key=wants_key)
    assert parse_ready_line(line) == ("http://127.0.0.1:8000", "127.0.0.1:50050")
    words = shlex.split(line.partition("Try: ")[2])
    assert ("authorization: Bearer KEY" in words) == wants_key
    assert '"model": "it\'s"' in words[-1]


@pytest.mark.parametrize(
    ("num_replicas", "num_up", "said"),
    [(1, None, "(gRPC). Try"), (3, 3, "(gRPC), 3 replicas."), (3, 1, "(gRPC), 1 of 3 replicas.")],
)
def test_the_line_says_how_many_replicas_are_up(
    num_replicas: int, num_up: int | None, said: str
) -> None:
    line = ready_line(ADDRESSES, "m", num_replicas=num_replicas, num_up=num_up)
    assert said in line
    assert parse_ready_line(line) == ("http://127.0.0.1:8000", "127.0.0.1:50050")


async def test_those_that_serve_are_counted_and_nobody_is_waited_for() -> None:
    async with start_echo() as serving, start_echo() as starting:
        await serving.server.set_serving(True)
        targets = [serving.server.address, starting.server.address, "127.0.0.1:1"]
        assert await count_serving(targets, SERVICE) == 1


async def test_servers_are_told_as_they_begin_to_serve() -> None:
    async with start_echo() as first, start_echo() as second, start_echo() as third:
        await first.server.set_serving(True)
        targets = [each.server.address for each in (third, second, first)]
        told = asyncio.Queue[int]()
        watching = asyncio.create_task(watch_serving(targets, SERVICE, told.put_nowait))
        assert await told.get() == 2
        await third.server.set_serving(True)
        assert await told.get() == 0
        await second.server.set_serving(True)
        assert await told.get() == 1
        await watching


async def test_a_server_with_too_many_watchers_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = asyncio.Event()

    class Full(HealthServicer):
        async def Watch(self, request: Any, context: Any) -> None:
            try:
                await super().Watch(request, context)
            except QueueFullError:
                refused.set()
                raise

    monkeypatch.setattr(server, "HealthServicer", Full)
    monkeypatch.setattr(health, "MAX_WATCHERS", 0)
    async with start_echo() as full:
        told = asyncio.Queue[int]()
        watching = asyncio.create_task(
            watch_serving([full.server.address], SERVICE, told.put_nowait)
        )
        await refused.wait()
        monkeypatch.setattr(health, "MAX_WATCHERS", 1)
        await full.server.set_serving(True)
        assert await told.get() == 0
        await watching


async def test_the_watch_of_servers_can_be_ended() -> None:
    async with start_echo() as starting:
        watching = asyncio.create_task(watch_serving([starting.server.address], SERVICE, print))
        await asyncio.sleep(0)
        await cancel_and_wait(watching)
        assert watching.cancelled()


async def test_what_a_long_start_waits_for_is_said_once_a_reason() -> None:
    async with start_echo() as starting:
        said = asyncio.Queue[str]()
        target = starting.server.address
        telling = asyncio.create_task(tell_why_not_ready(target, SERVICE, said.put_nowait, 0.01))
        for reason in ("no scheduler\x1b[2J", "no tokenizer"):
            await starting.server.set_serving(False, reason)
            while not (line := await said.get()).startswith(
                f"pagewire: not ready yet: {reason[:12]}"
            ):
                pass  # what it said before there was a reason of the test's own
            assert line.isprintable()
        await starting.server.set_serving(True)
        await cancel_and_wait(telling)
        assert said.empty()
