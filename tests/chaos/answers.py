"""What a client sees of a request: read event by event, and compared.

Reading fails on any event out of order. It knows no faults.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pagewire.kit.channels import open_channel
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.chaos.requests import Request

Stub: TypeAlias = "inference_pb2_grpc.InferenceServiceAsyncStub"

SILENCE_TIMEOUT_S = 600.0
"""From one event to the next: a whole answer may take any time on a machine that is shared."""
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


async def ask(
    stub: Stub, request: Request, on_event: Callable[[Answer], None] = lambda answer: None
) -> Answer:
    """Run a request to its end.

    Raises:
        grpc.aio.AioRpcError: It failed.
        TimeoutError: Nothing came for `SILENCE_TIMEOUT_S`.
    """
    answer, last_s = Answer(), time.monotonic()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SILENCE_TIMEOUT_S) as silence:
        async for event in stub.Generate(request):
            silence.reschedule(loop.time() + SILENCE_TIMEOUT_S)
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


@asynccontextmanager
async def open_stubs(targets: Sequence[str]) -> AsyncIterator[list[Stub]]:
    """Clients of the gateways."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(target, options=_PATIENT))
            for target in targets
        ]
        yield [inference_pb2_grpc.InferenceServiceStub(channel) for channel in channels]


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
