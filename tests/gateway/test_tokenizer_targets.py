"""The tokenizers' addresses: in turn, as they join and leave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway import tokenizer_targets
from gateway.detokenizer import Detokenizer
from gateway.tokenizer_client import TokenizerClient
from gateway.tokenizer_targets import TokenizerTargets
from tests.security.authority import Authority

NAME = "dns:///tokenizers:1"


async def addresses(targets: TokenizerTargets, number: int) -> list[str]:
    return [(await targets.next())[0] for _ in range(number)]


async def test_they_are_used_in_turn_each_by_the_same_channel() -> None:
    async with TokenizerTargets(["127.0.0.1:1", "127.0.0.1:2"]) as targets:
        found = [await targets.next() for _ in range(4)]
        assert [address for address, _ in found] == ["127.0.0.1:1", "127.0.0.1:2"] * 2
        assert found[0][1] is found[2][1]
        assert found[0][1] is not found[1][1]


async def test_those_that_join_are_used_and_those_that_left_are_not() -> None:
    async with TokenizerTargets(["127.0.0.1:1", "127.0.0.1:2"]) as targets:
        _, first = await targets.next()
        targets.set_addresses(["127.0.0.1:2", "127.0.0.1:3"])
        assert await addresses(targets, 3) == ["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:2"]
        targets.set_addresses(["127.0.0.1:1"])
        assert (await targets.next())[1] is not first


async def test_with_nobody_left_those_from_before_are_tried() -> None:
    async with TokenizerTargets(["127.0.0.1:1"]) as targets:
        targets.set_addresses([])
        assert await addresses(targets, 2) == ["127.0.0.1:1"] * 2


async def test_a_name_is_waited_for() -> None:
    answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def resolve(name: str) -> list[str]:
        assert name == NAME
        return await answer

    async with TokenizerTargets([NAME], resolve=resolve) as targets:
        waiting = asyncio.create_task(targets.next())
        answer.set_result(["127.0.0.1:7"])
        assert (await waiting)[0] == "127.0.0.1:7"


async def test_a_bug_in_following_the_names_is_told() -> None:
    async def resolve(name: str) -> list[str]:
        raise RuntimeError("a bug")

    async with TokenizerTargets([NAME], resolve=resolve) as targets:
        with pytest.raises(RuntimeError, match="a bug"):
            await targets.wait_failed()


async def test_a_client_whose_names_nobody_follows_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for an address for ever, and nobody would know."""

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tokenizer_targets, "follow_members", fail)
    client = TokenizerClient(
        [NAME], Detokenizer(60.0), timeout_s=5.0, connect_timeout_s=5.0, on_change=lambda: None
    )
    with pytest.raises(RuntimeError, match="a bug"):
        async with asyncio.timeout(20):
            await client.run()


async def test_a_renewed_certificate_is_shown_by_channels_of_its_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    tls = authority.issue("gateway").peer("tokenizer")
    async with TokenizerTargets(["127.0.0.1:1"], tls) as targets:
        (_, first), (_, again) = await targets.next(), await targets.next()
        authority.issue("gateway")  # the same files
        (_, renewed), (_, after) = await targets.next(), await targets.next()
        assert first is again and first is not renewed and renewed is after
