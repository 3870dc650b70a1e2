"""Requests of every kind, and what came back: one answer, or clients that ask again and again.

An answer keeps what a client saw, and its reading fails on any event out of order. It knows no
faults.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.tasks import TaskOwner
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.chaos.stack import WAIT_TIMEOUT_S

Stub: TypeAlias = "inference_pb2_grpc.InferenceServiceAsyncStub"
Request = inference_pb2.GenerateRequest

ANSWER_TIMEOUT_S = 600.0
SCHEMA = (
    '{"type": "array", "minItems": 60, "maxItems": 60,'
    ' "items": {"type": "integer", "minimum": 100, "maximum": 999}}'
)
_RETRY_PAUSE_S = 0.2
# A gateway that is stopped for a while is no broken connection for its clients.
_PATIENT = (
    ("grpc.keepalive_time_ms", 600_000),
    ("grpc.http2.ping_timeout_ms", 600_000),
    ("grpc.http2.bdp_probe", 0),
)


@dataclass
class Output:
    """One output of an answer."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, float, int]] = field(default_factory=list)
    """Token id, logprob and rank, a row a token."""
    finish: bytes = b""
    """The serialized `finished`; empty: none came."""


@dataclass
class Answer:
    """What a client got; equal answers have equal tokens, text, logprobs, ends and usage."""

    outputs: dict[int, Output] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    longest_pause_s: float = field(default=0.0, compare=False)

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs.values())

    def take(self, event: Any) -> None:
        """Add an event; fails if it cannot come now."""
        assert self.usage is None, "an event after the usage"
        kind = event.WhichOneof("event")
        if kind == "started":
            assert not self.outputs, "started late"
        elif kind == "delta":
            self._take_delta(event.delta)
        elif kind == "finished":
            output = self.outputs.setdefault(event.finished.index, Output())
            assert not output.finish, f"index {event.finished.index} finished twice"
            output.finish = event.finished.SerializeToString(deterministic=True)
        else:
            self.usage = event.usage.prompt_tokens, event.usage.completion_tokens

    def _take_delta(self, delta: inference_pb2.GenerationDelta) -> None:
        output = self.outputs.setdefault(delta.index, Output())
        assert not output.finish, f"index {delta.index} goes on after its end"
        output.text += delta.text
        output.token_ids += delta.token_ids
        rows = delta.logprobs
        output.logprobs += zip(rows.token_ids, rows.logprobs, rows.ranks, strict=True)


def mixed_requests(seed: int, number: int, max_tokens: int) -> list[Request]:
    """Greedy, sampled, with penalties, a schema, n = 2, logprobs, stop strings: in turns."""
    rng = random.Random(seed)
    makers = (_greedy, _sampled, _penalized, _schema, _twins, _logprobs, _stopping, _salted)
    requests = []
    for index in range(number):
        request = _plain(rng, index, max_tokens)
        makers[index % len(makers)](request)
        requests.append(request)
    return requests


def _plain(rng: random.Random, index: int, max_tokens: int) -> Request:
    """A prompt of ids, or of text, which must be tokenized first; half share a beginning."""
    prompt = [7] * rng.choice([0, 48])
    prompt += [rng.randrange(1000, 40_000) for _ in range(rng.randint(1, 90))]
    request = Request(
        sampling=inference_pb2.SamplingOptions(temperature=1.0, seed=index),
        stopping=inference_pb2.StoppingOptions(max_tokens=max_tokens, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )
    if index % 4 == 1:
        request.text = " ".join(map(str, prompt[-20:]))
    else:
        request.token_ids.CopyFrom(common_pb2.TokenIds(ids=prompt))
    return request


def _greedy(request: Request) -> None:
    request.sampling.temperature = 0.0


def _sampled(request: Request) -> None:
    request.sampling.top_p = 0.9


def _penalized(request: Request) -> None:
    request.sampling.presence_penalty = 0.5
    request.sampling.frequency_penalty = 0.5
    request.sampling.repetition_penalty = 1.2


def _schema(request: Request) -> None:
    request.response.structured_outputs.json_schema = SCHEMA
    request.stopping.ignore_eos = False


def _twins(request: Request) -> None:
    request.sampling.n = 2


def _logprobs(request: Request) -> None:
    request.response.logprobs = 2


def _stopping(request: Request) -> None:
    request.stopping.stop.extend(["qu", "never there"])


def _salted(request: Request) -> None:
    """Shares cached prefixes with its own repetitions only."""
    request.cache.salt = f"salt {request.sampling.seed}"


async def ask(
    stub: Stub, request: Request, on_event: Callable[[Answer], None] = lambda answer: None
) -> Answer:
    """Run a request to its end.

    Raises:
        grpc.aio.AioRpcError: It failed.
    """
    answer, last_s = Answer(), time.monotonic()
    async for event in stub.Generate(request, timeout=ANSWER_TIMEOUT_S):
        now_s = time.monotonic()
        answer.longest_pause_s = max(answer.longest_pause_s, now_s - last_s)
        last_s = now_s
        answer.take(event)
        on_event(answer)
    assert answer.usage is not None, "the stream ended without usage"
    assert all(output.finish for output in answer.outputs.values()), "an output has no end"
    return answer


async def ask_all(stub: Stub, requests: Sequence[Request]) -> list[Answer]:
    """Run all requests at once."""
    return list(await asyncio.gather(*(ask(stub, request) for request in requests)))


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

        Raises:
            Exception: What a client failed with.
        """
        failing = asyncio.create_task(self._tasks.wait_failed())
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
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
        """Wait until every client has seen a token of what it asks for now."""
        await self.wait(lambda: all(client.num_tokens for client in self.clients))

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

        Where lost gateways are forgiven, what ended with its gateway is asked again from its start.
        """
        started = False

        def note(answer: Answer) -> None:
            nonlocal started
            started = True
            on_event(answer)

        while True:
            num_failures = client.num_refusals + client.num_lost
            stub = self._stubs[(number + num_failures) % len(self._stubs)]
            client.num_asked += 1
            try:
                return await ask(stub, client.request, note)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                if started and not (self._forgives_lost_gateways and _is_of_gateway(error)):
                    raise
            if started:
                client.num_lost += 1
            else:
                client.num_refusals += 1
            started = False
            await asyncio.sleep(_RETRY_PAUSE_S)


def _is_of_gateway(error: grpc.aio.AioRpcError) -> bool:
    """Whether it says that the gateway itself went away, not something behind it."""
    return from_rpc_error(error).reason in ("PEER_UNAVAILABLE", "SHUTTING_DOWN")


@asynccontextmanager
async def open_stubs(targets: Sequence[str]) -> AsyncIterator[list[Stub]]:
    """Clients of the gateways."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(target, options=_PATIENT))
            for target in targets
        ]
        yield [inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels]


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


def difference(actual: Answer, right: Answer) -> str:
    """The first thing that is not the same."""
    if actual.outputs.keys() != right.outputs.keys():
        return f"indexes {sorted(actual.outputs)}, not {sorted(right.outputs)}"
    for index, output in actual.outputs.items():
        other = right.outputs[index]
        for name in ("token_ids", "text", "logprobs", "finish"):
            ours, theirs = getattr(output, name), getattr(other, name)
            if ours != theirs:
                at = next(
                    (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                    min(len(ours), len(theirs)),
                )
                return (
                    f"index {index}: {name} differ at {at} of {len(ours)} / {len(theirs)}:"
                    f" {ours[at : at + 5]!r}, not {theirs[at : at + 5]!r}"
                )
    return f"usage {actual.usage}, not {right.usage}"
