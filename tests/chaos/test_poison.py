"""A request that kills workers ends alone, wherever it goes; nobody else loses anything."""

from __future__ import annotations

import grpc
import pytest

from pagewire.kit.errors import from_rpc_error
from tests.chaos.answers import ask, ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.load import run_load
from tests.chaos.poisoned_worker import POISON
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack

NUM_STREAMS = 16
NUM_TOKENS = 100


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_replicas", [2, pytest.param(1, marks=pytest.mark.slow)])
async def test_a_poison_request_harms_nobody(num_replicas: int) -> None:
    requests = mixed_requests(9, NUM_STREAMS, NUM_TOKENS)
    poison = mixed_requests(10, 1, NUM_TOKENS)[0]
    poison.token_ids.ids[:] = [5, 6, POISON]
    layout = Layout(num_replicas=num_replicas, worker_module="tests.chaos.poisoned_worker")
    async with chaos_stack(layout) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            await load.wait_under_way()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(stubs[0], poison)
            await load.wait_turnover()
            await load.finish()
            assert load.wrong(expected) == []
        await wait_idle(stack)
        num_deaths = stack.log_text().count("signal SIGKILL")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert from_rpc_error(caught.value).reason == "REQUEST_SUSPECTED"
    assert num_deaths == 3
