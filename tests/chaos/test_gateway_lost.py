"""A gateway that is lost: schedulers end its requests, and its peers notice nothing."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.chaos.answers import ask, ask_all, open_stubs
from tests.chaos.checker import wait_for_load, wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import ChaosStack, Layout, chaos_stack

NUM_STREAMS = 16
NUM_TOKENS = 120
LAYOUT = Layout(num_gateways=2, num_tokenizers=1)


async def wait_busy(stack: ChaosStack) -> None:
    await wait_for_load(stack, "scheduler-0", lambda load: load.num_requests_running > 0)


@pytest.mark.timeout(900)
async def test_requests_of_a_killed_gateway_end_and_others_go_on() -> None:
    requests = mixed_requests(11, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(LAYOUT) as stack:
        targets = [stack.target(name) for name in LAYOUT.names("gateway")]
        async with open_stubs(targets) as (lost, other):
            expected = await ask_all(other, requests)
            asking = [asyncio.create_task(ask(lost, request)) for request in requests]
            async with run_load([other], requests) as load:
                await load.wait_under_way()
                struck = Fault(Kind.KILL, "gateway-0").strike(stack)
                ends = await asyncio.gather(*asking, return_exceptions=True)
                await struck.heal(stack)
                await load.wait_turnover()
                await load.finish()
                assert load.wrong(expected) == []
            await wait_idle(stack)
            assert await ask_all(lost, requests) == expected
    failures = [end for end in ends if isinstance(end, BaseException)]
    assert failures, "no client was told that its gateway is gone"
    assert {type(failure) for failure in failures} == {grpc.aio.AioRpcError}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_stopped_gateway_loses_its_requests_until_it_goes_on() -> None:
    requests = mixed_requests(12, NUM_STREAMS, 4 * NUM_TOKENS)
    async with chaos_stack(LAYOUT) as stack, open_stubs([stack.target("gateway-0")]) as (stub,):
        expected = await ask_all(stub, requests)
        async with run_load([stub], requests) as load:
            await load.wait_under_way()
            struck = Fault(Kind.STOP, "gateway-0").strike(stack)
            await wait_idle(stack)
            await struck.heal(stack)
            await load.finish()
            assert load.wrong(expected) == []
        await wait_idle(stack)
