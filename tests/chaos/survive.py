"""Rounds of faults under load, each of which must change nothing that a client gets."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault
from tests.chaos.load import run_load
from tests.chaos.requests import Request
from tests.chaos.stack import Layout, chaos_stack


async def survive(
    layout: Layout, requests: Sequence[Request], rounds: Sequence[Sequence[Fault]]
) -> None:
    """Every stream that a fault meets ends while it lasts, with the answer without faults."""
    async with chaos_stack(layout) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
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
            print(load.summary())
        await wait_idle(stack)
