"""Streams on two replicas while one process after another is killed, or stopped."""

from __future__ import annotations

import pytest

from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.stack import Layout, chaos_stack
from tests.chaos.traffic import ask_all, mixed_requests, open_stubs, run_load

NUM_STREAMS = 64
NUM_TOKENS = 200
PROCESSES = ("worker-0", "scheduler-1", "tokenizer-0")
ALL_PROCESSES = (*PROCESSES, "worker-1", "scheduler-0", "tokenizer-1")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [Kind.KILL, Kind.STOP])
async def test_streams_survive_the_loss_of_one_process_after_another(kind: Kind) -> None:
    await survive([Fault(kind, name) for name in PROCESSES])


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_streams_survive_the_loss_of_every_process() -> None:
    await survive([Fault(kind, name) for kind in (Kind.KILL, Kind.STOP) for name in ALL_PROCESSES])


async def survive(faults: list[Fault]) -> None:
    """Every stream that a fault meets ends while it lasts, with the answer without faults."""
    requests = mixed_requests(6, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(Layout()) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            for fault in faults:
                await load.wait_under_way()
                struck = fault.strike(stack)
                await load.wait_turnover()
                await struck.heal(stack)
            await load.wait_turnover()
            await load.finish()
            assert load.wrong(expected) == []
            print(
                f"{load.num_answers} answers, {load.num_refusals} refusals before admission,"
                f" longest pause {load.longest_pause_s:.2f} s"
            )
        await wait_idle(stack)
