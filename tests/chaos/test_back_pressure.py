"""Full queues, deadlines and clients that read nothing, over four processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest

from pagewire.kit.errors import from_rpc_error
from tests.chaos.answers import Stub, ask, open_stubs
from tests.chaos.checker import wait_for_load, wait_idle
from tests.chaos.requests import Request, mixed_requests
from tests.chaos.stack import ROOT, SIM, ChaosStack, Layout, chaos_stack

LONG = 6000
LAYOUT = Layout(
    num_replicas=1,
    num_tokenizers=1,
    engine=(*SIM, "--sim-step-time-us=20000", "--max-num-seqs=1", "--max-num-queued-requests=1"),
)


def long_request() -> Request:
    return mixed_requests(18, 1, LONG)[0]


async def fill(stack: ChaosStack, stub: Stub) -> list[asyncio.Task[object]]:
    """One request that runs, and one that waits: there is room for no other."""
    tasks: list[asyncio.Task[object]] = []
    for num_waiting in range(2):
        tasks.append(asyncio.create_task(ask(stub, long_request())))
        await wait_for_load(
            stack,
            "scheduler-0",
            lambda load, n=num_waiting: (
                (load.num_requests_running, load.num_requests_waiting) == (1, n)
            ),
        )
    return tasks


@pytest.mark.timeout(300)
async def test_full_queues_say_when_to_come_again_and_deadlines_hold() -> None:
    async with chaos_stack(LAYOUT) as stack, open_stubs([stack.target("gateway-0")]) as (stub,):
        tasks = await fill(stack, stub)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stub, long_request())
        async with httpx.AsyncClient(base_url=stack.http_url("gateway-0"), timeout=60) as client:
            body = {"prompt": [5, 6], "max_tokens": 5}
            refused = await client.post("/v1/completions", json=body)
            streamed = await client.post("/v1/completions", json=body | {"stream": True})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wait_idle(stack)
        await check_deadlines(stack, stub)
    error = from_rpc_error(caught.value)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.reason, bool(error.retry_after_s)) == ("QUEUE_FULL", True)
    for answer in (refused, streamed):
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1


async def check_deadlines(stack: ChaosStack, stub: Stub) -> None:
    """They hold in the queue and in the batch, and free the places there."""
    running = asyncio.create_task(expire(stub, 5.0))
    await wait_for_load(stack, "scheduler-0", lambda load: load.num_requests_running == 1)
    assert await expire(stub, 1.0) == 0, "it waited in the queue"
    assert await running > 0
    await wait_idle(stack)


async def expire(stub: Stub, timeout_s: float) -> int:
    """Ask with a deadline that comes first; return the number of tokens that came before."""
    num_tokens = 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for event in stub.Generate(long_request(), timeout=timeout_s):
            num_tokens += len(event.delta.token_ids)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return num_tokens


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_benchmark_of_slow_readers_tells_what_they_cost(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "benchmarks/slow_readers.py",
        "--busy=8",
        "--idle=20",
        "--slow=4",
        "--seconds=2",
        "--rounds=1",
        "--step-time-us=20000",
        f"--output={output}",
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    phases = json.loads(output.read_text())["phases"]
    assert [name.partition(" ")[0] for name in phases] == ["without", "with"]
    for phase in phases.values():
        # Nobody is held up by those who read nothing: all of them get tokens all the time.
        assert phase["num_gaps"] > 0
        assert phase["gateway_rss_max_mib"] < 2 * phase["gateway_rss_before_mib"]
