"""One gateway for the length of a client command: which one, its channel, Ctrl-C.

`chat` and `complete` use it. All of a command's calls run on one event loop that exists between
user inputs too; Ctrl-C cancels only the answer that is running.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import grpc

from pagewire.cli.generation import DEFAULT_TARGET, SamplingFlags
from pagewire.cli.own_stack import own_stack
from pagewire.cli.ready import GATEWAY_SERVICE
from pagewire.kit.channels import check_target, open_channel
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.healthcheck import HealthStatus, check

_CHECK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What `chat` and `complete` have in common."""

    target: str | None = None
    """Address of the gateway's gRPC API. Default: 127.0.0.1:50050, or, when nothing answers there,
    a stack of our own that ends with this command."""
    model: str = "smollm2"
    """Model of a stack of our own."""
    api_key: str | None = field(default=None, repr=False, metadata={"secret": True})
    """Key to send, if the gateway wants one: SECRET, or NAME=SECRET as the gateway has it."""
    answer: SamplingFlags = field(default_factory=SamplingFlags)

    def __post_init__(self) -> None:
        if self.target is not None:
            check_target(self.target)


class Session:
    """An open channel and its event loop. Use it from the main thread."""

    def __init__(self, runner: asyncio.Runner, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._runner = runner

    def print_answer(self, texts: AsyncGenerator[str], answer: list[str]) -> None:
        """Write the texts to standard output as they come, then a newline.

        Args:
            texts: Closed when this returns or raises, which cancels the request.
            answer: What came is appended, also when the answer is cut off.

        Raises:
            KeyboardInterrupt: Ctrl-C came; the request is cancelled.
            PagewireError: The request was refused or failed.
        """
        try:
            self._runner.run(_print_all(texts, answer))
        finally:
            if answer:
                print(flush=True)


@contextmanager
def open_session(target: str | None, model: str) -> Iterator[Session]:
    """Open a session with the gateway at `target`, or with a stack of our own.

    Args:
        target: None: the default address if a gateway answers there, else a stack of our own.
        model: What a stack of our own serves.

    Raises:
        ServiceUnavailableError: No gateway serves there, or the stack did not start.
    """
    with asyncio.Runner() as runner:
        status = runner.run(check(target or DEFAULT_TARGET, GATEWAY_SERVICE, _CHECK_TIMEOUT_S))
        if status.serving:
            with _connected(runner, target or DEFAULT_TARGET) as session:
                yield session
        elif target is None and status.status == "UNREACHABLE":
            print("pagewire: no gateway is up; starting a stack of our own", file=sys.stderr)
            with own_stack(model) as own_target, _connected(runner, own_target) as session:
                yield session
        else:
            raise ServiceUnavailableError(_not_serving(target or DEFAULT_TARGET, status))


@contextmanager
def _connected(runner: asyncio.Runner, target: str) -> Iterator[Session]:
    async def connect() -> grpc.aio.Channel:
        return open_channel(target)

    channel = runner.run(connect())
    try:
        yield Session(runner, channel)
    finally:
        runner.run(channel.close())


async def _print_all(texts: AsyncGenerator[str], answer: list[str]) -> None:
    async with aclosing(texts):
        async for text in texts:
            answer.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()


def _not_serving(target: str, status: HealthStatus) -> str:
    if status.status == "UNREACHABLE":
        return f"no gateway answers at {target}; start one with `pagewire serve`"
    reason = f": {status.reason}" if status.reason else ""
    return f"the gateway at {target} is {status.status}{reason}"
