"""The order of events that inference.proto promises, over engines that do anything an engine may.

One `started`, then deltas, one `finished` for each index after its last delta, one `usage` last;
errors are the status of the call, and a call that fails sends no `usage`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import grpc
import pytest

from pagewire.v1 import common_pb2, inference_pb2
from tests.gateway.conftest import Gateway, GatewayFactory
from tests.gateway.scripted_scheduler import ScriptedScheduler

NUM_CALLS = 40


def options(script: random.Random) -> dict[str, Any]:
    response = inference_pb2.ResponseOptions(return_token_ids=True)
    if script.random() < 0.5:
        response.logprobs = script.randrange(3)
    if script.random() < 0.3:
        response.prompt_logprobs = script.randrange(3)
    stop = [script.choice("abc")] if script.random() < 0.3 else []
    return {
        "sampling": inference_pb2.SamplingOptions(n=script.randint(1, 3), seed=1),
        "stopping": inference_pb2.StoppingOptions(max_tokens=400, stop=stop),
        "response": response,
    }


def call(gateway: Gateway, script: random.Random) -> tuple[Any, Any]:
    """Start a call; return its request and its stream of events."""
    if script.random() < 0.5:
        request: Any = inference_pb2.GenerateRequest(text="prompt", **options(script))
        return request, gateway.grpc.Generate(request)
    messages = [inference_pb2.ChatMessage(role="user", content="prompt")]
    request = inference_pb2.ChatRequest(messages=messages, **options(script))
    return request, gateway.grpc.Chat(request)


async def read(stream: Any) -> tuple[list[Any], grpc.StatusCode]:
    events = []
    try:
        async for event in stream:
            events.append(event)
    except grpc.aio.AioRpcError as exc:
        return events, exc.code()
    return events, grpc.StatusCode.OK


def check(request: Any, events: list[Any], code: grpc.StatusCode) -> None:
    kinds = [event.WhichOneof("event") for event in events]
    if code is grpc.StatusCode.UNAVAILABLE:  # it came while the engine's stream was lost
        assert not events
        return
    if code is not grpc.StatusCode.OK:
        assert code is grpc.StatusCode.INTERNAL
        assert "usage" not in kinds
    assert kinds[0] == "started" and kinds.count("started") == 1
    ended: Counter[int] = Counter()
    for event in events:
        if event.WhichOneof("event") == "delta":
            assert ended[event.delta.index] == 0
            check_rows(request, event.delta)
        elif event.WhichOneof("event") == "finished":
            ended[event.finished.index] += 1
    assert all(count == 1 for count in ended.values())
    if code is grpc.StatusCode.OK:
        assert set(ended) == set(range(request.sampling.n))
        assert kinds[-1] == "usage" and kinds.count("usage") == 1
        check_whole(request, events)


def check_rows(request: Any, delta: Any) -> None:
    """A row of logprobs for each token, and of the prompt's once."""
    columns = delta.logprobs
    if request.response.HasField("logprobs"):
        assert list(columns.token_ids) == list(delta.token_ids)
    lengths = {len(columns.token_ids), len(columns.token_bytes), len(columns.ranks)}
    assert lengths == {len(columns.logprobs)}
    assert sum(columns.top_counts) == len(columns.top_token_ids) == len(columns.top_logprobs)
    assert len(columns.top_token_bytes) == len(columns.top_token_ids)


def check_whole(request: Any, events: list[Any]) -> None:
    deltas = [event.delta for event in events if event.WhichOneof("event") == "delta"]
    assert sum(len(delta.token_ids) for delta in deltas) == events[-1].usage.completion_tokens
    with_prompt = [delta for delta in deltas if delta.HasField("prompt_logprobs")]
    wanted = request.response.HasField("prompt_logprobs")
    assert [delta.index for delta in with_prompt] == ([0] if wanted else [])
    for delta in with_prompt:
        assert len(delta.prompt_logprobs.logprobs) == events[0].started.prompt_tokens - 1
        assert delta == next(each for each in deltas if each.index == 0)


@pytest.mark.parametrize("seed", range(3))
async def test_any_engine_gives_events_in_the_contracts_order(
    run_gateway: GatewayFactory, seed: int
) -> None:
    scheduler, script = ScriptedScheduler(seed), random.Random(seed)
    async with run_gateway(scheduler) as gateway:
        calls = [call(gateway, script) for _ in range(NUM_CALLS)]
        async with asyncio.timeout(60):
            read_all = await asyncio.gather(*(read(stream) for _, stream in calls))
    for (request, _), (events, code) in zip(calls, read_all, strict=True):
        check(request, events, code)
    assert len(scheduler.opens) > 1
    codes = Counter(code for _, code in read_all)
    assert codes[grpc.StatusCode.OK] and codes[grpc.StatusCode.INTERNAL]
    reasons = {
        event.finished.finish_reason
        for event in itertools.chain.from_iterable(events for events, _ in read_all)
        if event.WhichOneof("event") == "finished"
    }
    assert reasons == {
        common_pb2.FINISH_REASON_STOP,
        common_pb2.FINISH_REASON_LENGTH,
        common_pb2.FINISH_REASON_ABORT,
        common_pb2.FINISH_REASON_REPETITION,
    }
