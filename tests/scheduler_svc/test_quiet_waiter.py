import asyncio

import pytest

from scheduler_svc.pause import PauseState
from scheduler_svc.quiet_waiter import QuietWaiter


@pytest.mark.parametrize(
    ("state", "num_running", "num_in_flight", "is_quiet"),
    [
        (PauseState.PAUSED_NEW, 1, 0, False),
        (PauseState.PAUSED_NEW, 0, 1, False),
        (PauseState.PAUSED_NEW, 0, 0, True),
        (PauseState.PAUSED_ALL, 1, 1, False),
        (PauseState.PAUSED_ALL, 1, 0, True),
        (PauseState.UNPAUSED, 1, 1, True),
    ],
)
async def test_waiting_ends_when_all_is_quiet_or_the_pause_is_over(
    state, num_running, num_in_flight, is_quiet
):
    waiter = QuietWaiter()
    waiter.note(state, num_running=num_running, num_steps_in_flight=num_in_flight)
    waiting = asyncio.ensure_future(waiter.wait())
    await asyncio.sleep(0)
    assert waiting.done() == is_quiet
    waiter.note(PauseState.UNPAUSED, num_running=0, num_steps_in_flight=0)
    await waiting
