"""Streams on two replicas while one process after another is killed, or stopped."""

from __future__ import annotations

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack

NUM_STREAMS = 64
NUM_TOKENS = 200
PROCESSES = ("worker-0", "scheduler-1", "tokenizer-0", "worker-1", "scheduler-0", "tokenizer-1")


@pytest.mark.timeout(900)
async def test_streams_survive_the_loss_of_one_process_after_another() -> None:
    kills = [[Fault(Kind.KILL, name)] for name in PROCESSES[:3]]
    # Each takes 10 s to be noticed, so two at a time that do not meet.
    stops = [[Fault(Kind.STOP, "worker-0"), Fault(Kind.STOP, "tokenizer-0")]]
    await survive([*kills, *stops])


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_streams_survive_the_loss_of_every_process() -> None:
    kinds = (Kind.KILL, Kind.STOP)
    await survive([[Fault(kind, name)] for kind in kinds for name in PROCESSES])


async def survive(rounds: list[list[Fault]]) -> None:
    """Every stream that a fault meets ends while it lasts, with the answer without faults."""
    requests = mixed_requests(6, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(Layout()) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
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
            print(
                f"{load.num_answers} answers, {load.num_refusals} refusals before admission,"
                f" longest pause {load.longest_pause_s:.2f} s"
            )
        await wait_idle(stack)
