"""One of each: nothing can take over, so streams wait for what was lost and go on."""

from __future__ import annotations

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_for_load, wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack

NUM_STREAMS = 16
NUM_TOKENS = 120
ALONE = Layout(num_replicas=1, num_tokenizers=1)


# Short forms: the kills in tests/e2e/test_killed_under_load.py.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "faults",
    [
        [Fault(Kind.KILL, name) for name in ("worker-0", "scheduler-0", "tokenizer-0")],
        [Fault(Kind.STOP, "worker-0")],
        [Fault(Kind.STOP, "scheduler-0")],
        [Fault(Kind.STOP, "tokenizer-0")],
    ],
    ids=["kills", "worker stops", "scheduler stops", "tokenizer stops"],
)
async def test_streams_wait_and_go_on(faults: list[Fault]) -> None:
    requests = mixed_requests(7, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(ALONE) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            for fault in faults:
                await load.wait_under_way()
                struck = fault.strike(stack)
                if fault.kind is Kind.STOP:
                    await stack.wait_said("no frame for", "silent for")
                await struck.heal(stack)
                await load.wait_turnover()
            await load.finish()
            assert load.wrong(expected) == []
        await wait_idle(stack)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_standby_takes_the_place_of_a_worker_that_does_not_come_back() -> None:
    """And the one that was stopped, once it goes on, serves nobody with what it held."""
    requests = mixed_requests(8, NUM_STREAMS, NUM_TOKENS)
    layout = Layout(num_replicas=1, num_tokenizers=1, num_standby_workers=1)
    async with chaos_stack(layout) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        async with run_load(stubs, requests) as load:
            await load.wait_under_way()
            struck = Fault(Kind.STOP, "worker-0").strike(stack)
            await wait_for_load(stack, "scheduler-0", lambda load: not load.ready)
            await load.wait_turnover()
            await struck.heal(stack)
            await load.wait_turnover()
            await load.finish()
            assert load.wrong(expected) == []
        await wait_idle(stack)
