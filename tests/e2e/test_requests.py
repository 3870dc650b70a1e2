"""Many requests at once, requests that go away, pools that are far too small."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import grpc
import httpx
import pytest

from pagewire.kit.channels import open_channel
from pagewire.v1 import common_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2_grpc
from pagewire.v1.scheduler_pb2 import WatchLoadRequest, WatchLoadResponse
from tests.e2e.requests import alone, generate, sim_request
from tests.e2e.stack import Stack, start_stack
from tests.parity import ParityReport
from tests.worker_svc.reference import smollm2_greedy

NUM_SIM_REQUESTS = 2_000
NUM_CLIENTS = 64


async def wait_for_load(
    stack: Stack, done: Callable[[WatchLoadResponse], bool]
) -> WatchLoadResponse:
    """The first load report that satisfies `done`, within 30 s."""
    async with open_channel(stack.scheduler_target) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        async for load in stub.WatchLoad(WatchLoadRequest(interval_ms=1), timeout=30):
            if done(load):
                return load
    raise AssertionError("the load stream ended")


def is_idle(load: WatchLoadResponse) -> bool:
    return load.num_requests_running == 0 and load.num_requests_waiting == 0


@pytest.mark.timeout(600)
async def test_2000_requests_on_a_tiny_pool_each_get_the_tokens_they_get_alone() -> None:
    rng = random.Random(20)
    requests = [sim_request(rng, number) for number in range(NUM_SIM_REQUESTS)]
    queue = list(enumerate(requests))
    outputs: dict[int, list[int]] = {}
    flags = ("--device", "sim", "--num-gpu-blocks-override", "64", "--max-model-len", "512")
    with start_stack(*flags) as stack:
        async with open_channel(stack.grpc_target) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)

            async def client() -> None:
                while queue:
                    number, request = queue.pop()
                    outputs[number] = await generate(stub, request)

            await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
        load = await wait_for_load(stack, is_idle)
    assert load.num_preemptions > 0
    assert load.kv_cache_usage == 0
    wrong = [n for n, request in enumerate(requests) if outputs[n] != alone(request)]
    assert wrong == []


def real_request(rng: random.Random, number: int) -> inference_pb2.GenerateRequest:
    """A greedy request, or one with a seed, of 8 to 60 prompt tokens and 12 output tokens."""
    prompt = [rng.randrange(1000, 40_000) for _ in range(rng.randint(8, 60))]
    return inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingOptions(temperature=number % 2, seed=number, top_p=0.95),
        stopping=inference_pb2.StoppingOptions(max_tokens=12, ignore_eos=True),
        response=inference_pb2.ResponseOptions(return_token_ids=True),
    )


def gap(request: inference_pb2.GenerateRequest, position: int) -> float:
    """How close a greedy choice was; a sampled one is never taken for a tie."""
    if request.sampling.temperature:
        return float("inf")
    return smollm2_greedy([list(request.token_ids.ids)], 12)[0].gaps[position]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("num_requests", "num_blocks"), [(12, 20), pytest.param(64, 40, marks=pytest.mark.slow)]
)
async def test_real_requests_on_a_tiny_pool_each_get_the_tokens_they_get_alone(
    smollm2_stack: Stack, num_requests: int, num_blocks: int
) -> None:
    rng = random.Random(64)
    requests = [real_request(rng, number) for number in range(num_requests)]
    flags = ("--dtype=float32", f"--num-gpu-blocks-override={num_blocks}", "--max-model-len=256")
    with start_stack(*flags) as tiny:
        async with open_channel(tiny.grpc_target) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            crowded = await asyncio.gather(*(generate(stub, request) for request in requests))
        load = await wait_for_load(tiny, is_idle)
    assert load.num_preemptions > 0
    assert load.kv_cache_usage == 0
    report = ParityReport()
    async with open_channel(smollm2_stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for number, request in enumerate(requests):
            single = await generate(stub, request)
            assert len(single) == 12
            report.compare(
                f"request {number}", crowded[number], single, lambda at, r=request: gap(r, at)
            )
    report.check()


async def test_a_client_that_goes_away_in_mid_stream_frees_its_blocks(sim_stack: Stack) -> None:
    before = (await wait_for_load(sim_stack, is_idle)).num_steps
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 8000, "stream": True}
    async with (
        httpx.AsyncClient() as client,
        client.stream(
            "POST",
            f"{sim_stack.http_url}/v1/completions",
            json=body | {"ignore_eos": True},
            timeout=30,
        ) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        busy = await wait_for_load(sim_stack, lambda load: load.num_requests_running == 1)
        assert busy.kv_cache_usage > 0
        await response.aclose()
    idle = await wait_for_load(sim_stack, is_idle)
    assert idle.kv_cache_usage == 0
    assert before < idle.num_steps < 8000


async def test_a_cancelled_call_frees_its_blocks(sim_stack: Stack) -> None:
    async with open_channel(sim_stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stopping = inference_pb2.StoppingOptions(max_tokens=8000, ignore_eos=True)
        call = stub.Generate(inference_pb2.GenerateRequest(text="Hello", stopping=stopping))
        started = await call.read()
        assert isinstance(started, inference_pb2.GenerateResponse)
        await wait_for_load(sim_stack, lambda load: load.num_requests_running == 1)
        call.cancel()
    idle = await wait_for_load(sim_stack, is_idle)
    assert idle.kv_cache_usage == 0


async def test_a_deadline_ends_the_call_and_frees_its_blocks(sim_stack: Stack) -> None:
    async with open_channel(sim_stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        stopping = inference_pb2.StoppingOptions(max_tokens=8000, ignore_eos=True)
        request = inference_pb2.GenerateRequest(text="Hello", stopping=stopping)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request, timeout=0.2):
                pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await wait_for_load(sim_stack, is_idle)).kv_cache_usage == 0
