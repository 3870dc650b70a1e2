"""Tests of the line that says where the stack answers."""

from __future__ import annotations

import shlex

import pytest

from pagewire.cli.addresses import Addresses
from pagewire.cli.ready import count_serving, parse_ready_line, ready_line
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
