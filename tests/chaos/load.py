"""Clients that ask again and again while something happens to the stack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from pagewire.kit.errors import from_rpc_error
from pagewire.kit.tasks import TaskOwner
from tests.chaos.answers import Answer, Stub, ask, difference
from tests.chaos.requests import Request

_RETRY_PAUSE_S = 0.2
_MOST = 0.75
_NOT_ADMITTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_MAX_REFUSALS = 3000
"""In a row: at least 10 minutes in which nobody admits a request."""


@dataclass
class Client:
    """Asks the same thing again and again."""

    request: Request
    answers: list[Answer] = field(default_factory=list)
    num_tokens: int = 0
    """Of the answer that is coming."""
    num_refusals: int = 0
    """UNAVAILABLE before admission: a client asks again."""
    num_lost: int = 0
    """Ended with their gateway; only where that is expected."""
    num_asked: int = 0
    num_events: int = 0
    """Of all answers; grows with each token."""


class Load:
    """Clients that each have one request under way until `finish`. See `run_load`."""

    def __init__(
        self, stubs: Sequence[Stub], requests: Sequence[Request], forgives_lost_gateways: bool
    ) -> None:
        self.clients = [Client(request) for request in requests]
        self._forgives_lost_gateways = forgives_lost_gateways
        self._stubs = stubs
        self._ending = False
        self._changed = asyncio.Event()
        self._tasks = TaskOwner()

    def start(self) -> None:
        for number, client in enumerate(self.clients):
            self._tasks.spawn(self._run(client, number), name=f"client {number}")

    async def wait(self, done: Callable[[], bool]) -> None:
        """Wait until something holds, looked at whenever a client got something.

        It lasts as long as every client gets something now and then.

        Raises:
            Exception: What a client failed with; TimeoutError if it got nothing for too long.
        """
        failing = asyncio.create_task(self._tasks.wait_failed())
        try:
            while not done():
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait((failing, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if failing.done():
                    failing.result()
        finally:
            failing.cancel()

    async def wait_under_way(self) -> None:
        """Wait until every client has seen a token, most of them one of what they ask for now.

        All of them at one moment would be left to chance: short answers end, and others begin.
        """

        def is_under_way() -> bool:
            begun = sum(client.num_tokens > 0 for client in self.clients)
            has_all = all(client.num_events for client in self.clients)
            return has_all and begun >= _MOST * len(self.clients)

        await self.wait(is_under_way)

    async def wait_turnover(self) -> None:
        """Wait until every request that is under way now has ended."""
        before = [len(client.answers) for client in self.clients]
        await self.wait(
            lambda: all(
                len(client.answers) > number
                for client, number in zip(self.clients, before, strict=True)
            )
        )

    async def wait_progress(self) -> None:
        """Wait until every client has got something more."""
        before = [client.num_events for client in self.clients]
        await self.wait(
            lambda: all(
                client.num_events > number
                for client, number in zip(self.clients, before, strict=True)
            )
        )

    async def finish(self) -> None:
        """Let every client end what it has under way, and no more; each asks at least once."""
        self._ending = True
        await self.wait(lambda: len(self._tasks) == 0)

    async def close(self) -> None:
        await self._tasks.close()

    @property
    def num_answers(self) -> int:
        return sum(len(client.answers) for client in self.clients)

    @property
    def num_refusals(self) -> int:
        return sum(client.num_refusals for client in self.clients)

    @property
    def num_lost(self) -> int:
        return sum(client.num_lost for client in self.clients)

    @property
    def num_asked(self) -> int:
        return sum(client.num_asked for client in self.clients)

    @property
    def longest_pause_s(self) -> float:
        return max(a.longest_pause_s for client in self.clients for a in client.answers)

    def summary(self) -> str:
        """What to print of a load that has ended well."""
        return (
            f"{self.num_answers} answers, {self.num_refusals} refusals before admission,"
            f" longest pause {self.longest_pause_s:.2f} s"
        )

    def wrong(self, expected: Sequence[Answer]) -> list[str]:
        """What differs from the answers without faults; empty: nothing."""
        return [
            f"client {number}, answer {index}: {difference(answer, right)}"
            for number, (client, right) in enumerate(zip(self.clients, expected, strict=True))
            for index, answer in enumerate(client.answers)
            if answer != right
        ]

    async def _run(self, client: Client, number: int) -> None:
        def on_event(answer: Answer) -> None:
            client.num_tokens = answer.num_tokens
            client.num_events += 1
            self._changed.set()

        while not (self._ending and client.answers):
            client.num_tokens = 0
            client.answers.append(await self._ask_until_admitted(client, number, on_event))
            self._changed.set()
        asyncio.get_running_loop().call_soon(self._changed.set)  # when the task has ended

    async def _ask_until_admitted(
        self, client: Client, number: int, on_event: Callable[[Answer], None]
    ) -> Answer:
        """Ask one gateway after another, as long as they refuse; a request admitted must end.

        A client's first is always the same, so that a gateway has as many clients after a fault as
        it had before. Where lost gateways are forgiven, what ended with its gateway is asked again
        from its start.
        """
        started, num_refused, num_failures = False, 0, 0

        def note(answer: Answer) -> None:
            nonlocal started
            started = True
            on_event(answer)

        while True:
            stub = self._stubs[(number + num_failures) % len(self._stubs)]
            client.num_asked += 1
            try:
                return await ask(stub, client.request, note)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _NOT_ADMITTED:
                    raise
                if started and not (self._forgives_lost_gateways and _is_of_gateway(error)):
                    raise
                if num_refused == _MAX_REFUSALS:
                    raise
            num_failures += 1
            if started:
                client.num_lost += 1
                num_refused = 0
            else:
                client.num_refusals += 1
                num_refused += 1
            started = False
            await asyncio.sleep(_RETRY_PAUSE_S)


def _is_of_gateway(error: grpc.aio.AioRpcError) -> bool:
    """Whether it says that the gateway itself went away, not something behind it."""
    return from_rpc_error(error).reason in ("PEER_UNAVAILABLE", "SHUTTING_DOWN")


@asynccontextmanager
async def run_load(
    stubs: Sequence[Stub], requests: Sequence[Request], *, forgives_lost_gateways: bool = False
) -> AsyncIterator[Load]:
    """Keep requests under way inside; a stream that ends with its gateway fails, or is forgiven."""
    load = Load(stubs, requests, forgives_lost_gateways)
    load.start()
    try:
        yield load
    finally:
        await load.close()
