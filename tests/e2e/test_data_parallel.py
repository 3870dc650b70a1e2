"""Replicas behind one gateway: conversations return, all are used, and one that dies is no loss."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from pagewire.kit.channels import open_channel
from pagewire.sampling_params import SamplingParams
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.e2e.completions import (
    TokenRequest,
    complete,
    http_client,
    one_by_one,
    post,
    together,
)
from tests.e2e.stack import Stack, start_stack

REPLICAS = ("--data-parallel-size=2",)
NUM_TOKENS = 24
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack("--device=sim", "--sim-step-time-us=10000", *REPLICAS) as running:
        yield running


def requests(number: int, seed: int, prompt_len: int = 200) -> list[TokenRequest]:
    rng = random.Random(seed)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return [
        TokenRequest(tuple(rng.randrange(1000, 40_000) for _ in range(prompt_len)), params)
        for _ in range(number)
    ]


def schedulers(stack: Stack) -> list[psutil.Process]:
    return [each for each in stack.processes() if "scheduler_svc" in each.cmdline()]


def targets(stack: Stack) -> list[str]:
    flags = [flag for each in schedulers(stack) for flag in each.cmdline()]
    return sorted(f.removeprefix("--listen=") for f in flags if f.startswith("--listen="))


async def loads(stack: Stack) -> list[scheduler_pb2.WatchLoadResponse]:
    """What each scheduler says of itself now."""
    found = []
    for target in targets(stack):
        async with open_channel(target) as channel:
            call = scheduler_pb2_grpc.SchedulerServiceStub(channel).WatchLoad(
                scheduler_pb2.WatchLoadRequest()
            )
            found.append(await call.read())
            call.cancel()
    return found


async def wait_all_up(stack: Stack) -> None:
    """Wait until the gateway has both: it is ready with one."""
    up = re.compile(r"^pagewire:gateway_scheduler_up\{.*\} 1\.0$", re.MULTILINE)
    async with http_client(stack.http_url) as client:
        while len(up.findall((await client.get("/metrics")).text)) < 2:
            pass
    while not all([load.ready for load in await loads(stack)]):
        pass


async def test_all_replicas_share_the_load(stack: Stack) -> None:
    assert len(targets(stack)) == 2
    await wait_all_up(stack)
    await together(stack.http_url, requests(16, seed=1))
    generated = [load.generation_tokens for load in await loads(stack)]
    assert sum(generated) >= 16 * NUM_TOKENS
    assert min(generated) >= 4 * NUM_TOKENS


async def test_a_conversation_returns_to_the_replica_that_has_it(stack: Stack) -> None:
    """Every turn after the first finds all that was said before, whatever else goes on."""
    (request,) = requests(1, seed=2)
    said = list(request.prompt)
    async with http_client(stack.http_url) as client:
        for turn in range(5):
            body = TokenRequest(tuple(said), request.params).body()
            answer = await post(client, "/v1/completions", body)
            # The last token of the answer before was drawn and never computed.
            num_computed = len(said) - 32 - 1 if turn else 0
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == num_computed // BLOCK_SIZE * BLOCK_SIZE
            others = requests(3, seed=10 + turn)
            await asyncio.gather(*(complete(client, other) for other in others))
            said += [*answer["choices"][0]["token_ids"], *others[0].prompt[:32]]


async def test_the_other_replica_goes_on_when_one_is_killed(stack: Stack) -> None:
    wanted = [
        replace(each, params=replace(each.params, max_tokens=300)) for each in requests(8, seed=3)
    ]
    expected = await together(stack.http_url, wanted)
    running = asyncio.create_task(together(stack.http_url, wanted))
    while not all([load.num_requests_running for load in await loads(stack)]):
        assert not running.done()
    os.kill(schedulers(stack)[0].pid, signal.SIGKILL)
    assert await running == expected


@pytest.mark.slow
def test_the_embedded_model_is_served_by_two_replicas() -> None:
    with start_stack("--model=smollm2", "--dtype=float32", *REPLICAS) as stack:
        wanted = requests(6, seed=4, prompt_len=40)
        expected = asyncio.run(one_by_one(stack.http_url, wanted))
        assert asyncio.run(together(stack.http_url, wanted)) == expected
        os.kill(schedulers(stack)[0].pid, signal.SIGKILL)
        assert asyncio.run(together(stack.http_url, wanted)) == expected
        assert Counter(map(len, expected)) == {NUM_TOKENS: len(wanted)}
