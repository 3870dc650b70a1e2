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

from pagewire.cli.client_tls import ClientTls
from pagewire.cli.generation import DEFAULT_TARGET, ConnectedGateway, SamplingFlags
from pagewire.cli.own_stack import own_stack
from pagewire.cli.ready import GATEWAY_SERVICE
from pagewire.kit.channels import check_target, open_channel
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.healthcheck import HealthStatus, check
from pagewire.kit.plain_text import without_controls
from pagewire.kit.tls import PeerTls

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
    tls: ClientTls = field(default_factory=ClientTls)

    def __post_init__(self) -> None:
        if self.target is not None:
            check_target(self.target)


class Session:
    """An open channel and its event loop. Use it from the main thread."""

    def __init__(self, runner: asyncio.Runner, gateway: ConnectedGateway) -> None:
        self.gateway = gateway
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
def open_session(config: ClientConfig) -> Iterator[Session]:
    """Open a session with the gateway of the configuration, or with a stack of our own.

    Raises:
        ConfigError: A file cannot be used.
        ServiceUnavailableError: No gateway serves there, or the stack did not start.
    """
    target, tls = config.target or DEFAULT_TARGET, config.tls.peer()
    with asyncio.Runner() as runner:
        status = runner.run(check(target, GATEWAY_SERVICE, _CHECK_TIMEOUT_S, tls))
        if status.serving:
            with _connected(runner, target, tls) as session:
                yield session
        elif config.target is None and tls is None and status.status == "UNREACHABLE":
            print("pagewire: no gateway is up; starting a stack of our own", file=sys.stderr)
            with own_stack(config.model) as own_target, _connected(runner, own_target) as session:
                yield session
        else:
            raise ServiceUnavailableError(_not_serving(target, status, is_tls=tls is not None))


@contextmanager
def _connected(
    runner: asyncio.Runner, target: str, tls: PeerTls | None = None
) -> Iterator[Session]:
    async def connect() -> grpc.aio.Channel:
        return open_channel(target, tls=tls)

    channel = runner.run(connect())
    try:
        yield Session(runner, ConnectedGateway(channel, target))
    finally:
        runner.run(channel.close())


async def _print_all(texts: AsyncGenerator[str], answer: list[str]) -> None:
    # What goes into a file or another program is the model's text as it is.
    shown = without_controls if sys.stdout.isatty() else str
    async with aclosing(texts):
        async for text in texts:
            answer.append(text)
            sys.stdout.write(shown(text))
            sys.stdout.flush()


def _not_serving(target: str, status: HealthStatus, *, is_tls: bool) -> str:
    if status.status == "UNREACHABLE":
        if is_tls:
            return f"no gateway answers at {target} by TLS, or its certificate is not trusted"
        return f"no gateway answers at {target}; start one with `pagewire serve`"
    reason = f": {status.reason}" if status.reason else ""
    return f"the gateway at {target} is {status.status}{reason}"
