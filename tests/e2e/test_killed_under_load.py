"""Kill -9 of each engine process under load: streams pause, go on, and no token changes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagewire.kit.channels import open_channel
from pagewire.v1 import inference_pb2, inference_pb2_grpc
from tests.e2e.completions import http_client
from tests.e2e.requests import alone, generate, sim_request
from tests.e2e.stack import Stack, start_stack

NUM_STREAMS = 24
NUM_TOKENS = 300


async def started(events: list[asyncio.Event]) -> None:
    await asyncio.gather(*(event.wait() for event in events))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("module", ["worker_svc", "scheduler_svc", "tokenizer_svc"])
async def test_a_process_killed_under_load_loses_no_token(module: str) -> None:
    rng = random.Random(module)
    requests = [sim_request(rng, number, NUM_TOKENS) for number in range(NUM_STREAMS)]
    with start_stack("--device", "sim", "--sim-step-time-us", "5000") as stack:
        outputs = await run_and_kill(stack, module, requests)
        counted = await figures(stack)
    # What was computed, sent or spelled again is not counted again.
    assert counted["pagewire:request_success_total"] == NUM_STREAMS
    assert counted["pagewire:generation_tokens_total"] == NUM_STREAMS * NUM_TOKENS
    assert counted["pagewire:time_to_first_token_seconds_count"] == NUM_STREAMS
    num_gaps = NUM_STREAMS * (NUM_TOKENS - 1)
    assert counted["pagewire:inter_token_latency_seconds_count"] == num_gaps
    num_prompt_tokens = sum(len(request.token_ids.ids) for request in requests)
    assert counted["pagewire:prompt_tokens_total"] == num_prompt_tokens
    wrong = [n for n, request in enumerate(requests) if outputs[n] != alone(request)]
    assert wrong == []


async def figures(stack: Stack) -> Counter[str]:
    """What the gateway has counted, summed over labels."""
    async with http_client(stack.http_url) as client:
        text = (await client.get("/metrics")).text
    total = Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            total[sample.name] += int(sample.value)
    return total


async def run_and_kill(
    stack: Stack, module: str, requests: list[inference_pb2.GenerateRequest]
) -> list[list[int]]:
    """Kill the process once every stream has a token; return the streams' token ids."""
    first_tokens = [asyncio.Event() for _ in requests]
    async with open_channel(stack.grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        tasks = [
            asyncio.create_task(generate(stub, request, event))
            for request, event in zip(requests, first_tokens, strict=True)
        ]
        await started(first_tokens)
        assert not any(task.done() for task in tasks)
        stack.child(module).kill()
        return list(await asyncio.gather(*tasks))
