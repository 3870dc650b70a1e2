"""Links that are reset, slow, or carry nothing: streams end with the same tokens."""

from __future__ import annotations

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack

NUM_STREAMS = 24
NUM_TOKENS = 100
LINKS = (
    ("gateway-0", "scheduler-0"),
    ("gateway-0", "tokenizer-0"),
    ("scheduler-0", "worker-0"),
    ("scheduler-0", "tokenizer-0"),
)
LAYOUT = Layout(proxied=LINKS)


# Short form: the soak.
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_streams_survive_links_that_break_and_links_that_are_slow() -> None:
    resets = [[Fault(Kind.RESET, link)] for link in LINKS[:3]]
    await survive([*resets, [Fault(Kind.DELAY, link) for link in LINKS]])


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_streams_survive_links_that_carry_nothing() -> None:
    await survive([[Fault(Kind.BLACKHOLE, link)] for link in LINKS])


async def survive(rounds: list[list[Fault]]) -> None:
    requests = mixed_requests(14, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(LAYOUT) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            for faults in rounds:
                await load.wait_under_way()
                struck = [fault.strike(stack) for fault in faults]
                await load.wait_turnover()
                for each in struck:
                    await each.heal(stack)
            await load.wait_turnover()
            await load.finish()
            assert load.wrong(expected) == []
        await wait_idle(stack)
