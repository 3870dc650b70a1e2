"""What a command shows of an answer: on a terminal, and in a pipe."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncGenerator

import grpc
import pytest

from pagewire.cli.generation import ConnectedGateway, SamplingFlags, stream_completion
from pagewire.cli.session import Session
from pagewire.kit.errors import ServiceUnavailableError

PIECES = ["a\x1b", "]0;owned\x07\n", "\x9b2Jb"]


async def _texts() -> AsyncGenerator[str]:
    for piece in PIECES:
        yield piece


class _Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [(True, "a\ufffd]0;owned\ufffd\n\ufffd2Jb\n"), (False, "".join(PIECES) + "\n")],
)
def test_an_answer_cannot_drive_a_terminal_and_is_whole_elsewhere(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, shown: str
) -> None:
    stream = _Stream(is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    answer = list[str]()
    with asyncio.Runner() as runner:

        async def channel() -> grpc.aio.Channel:
            return grpc.aio.insecure_channel("127.0.0.1:1")

        gateway = ConnectedGateway(runner.run(channel()), "127.0.0.1:1")
        Session(runner, gateway).print_answer(_texts(), answer)
        runner.run(gateway.channel.close())
    assert stream.getvalue() == shown
    assert answer == PIECES, "the history has what the model said"


async def test_an_answer_that_is_cut_off_names_the_gateway() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        gateway = ConnectedGateway(channel, "127.0.0.1:1")
        with pytest.raises(
            ServiceUnavailableError, match=r"the gateway at 127\.0\.0\.1:1 was lost"
        ):
            await anext(stream_completion(gateway, "a", SamplingFlags(), None))
