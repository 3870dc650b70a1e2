"""Every process is drained and started again, one after another, under load: nobody loses."""

from __future__ import annotations

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack

NUM_STREAMS = 32
NUM_TOKENS = 60


@pytest.mark.timeout(900)
async def test_a_rolling_restart_fails_no_request() -> None:
    await restart_all(Layout(num_gateways=2))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_outlasts_a_schedulers_drain_goes_on_elsewhere() -> None:
    await restart_all(Layout(num_gateways=2, scheduler=("--drain-timeout=0.2",)))


async def restart_all(layout: Layout) -> None:
    requests = mixed_requests(13, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(layout) as stack:
        targets = [stack.target(name) for name in layout.names("gateway")]
        async with open_stubs(targets) as stubs:
            expected = await ask_all(stubs[0], requests)
            async with run_load(stubs, requests) as load:
                for name in layout.all_names:
                    await load.wait_under_way()
                    struck = Fault(Kind.TERMINATE, name).strike(stack)
                    await struck.heal(stack)
                await load.wait_turnover()
                await load.finish()
                assert load.wrong(expected) == []
                print(f"{load.num_answers} answers, {load.num_refusals} refusals")
            await wait_idle(stack)
