"""Links that are reset, slow, or carry nothing: streams end with the same tokens."""

from __future__ import annotations

import pytest

from tests.chaos.faults import Fault, Kind
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout
from tests.chaos.survive import survive

NUM_STREAMS = 24
NUM_TOKENS = 100
LINKS = (
    ("gateway-0", "scheduler-0"),
    ("gateway-0", "tokenizer-0"),
    ("scheduler-0", "worker-0"),
    ("scheduler-0", "tokenizer-0"),
)
LAYOUT = Layout(proxied=LINKS)
REQUESTS = mixed_requests(14, NUM_STREAMS, NUM_TOKENS)


# Short form: the soak.
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_streams_survive_links_that_break_and_links_that_are_slow() -> None:
    resets = [[Fault(Kind.RESET, link)] for link in LINKS[:3]]
    await survive(LAYOUT, REQUESTS, [*resets, [Fault(Kind.DELAY, link) for link in LINKS]])


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_streams_survive_links_that_carry_nothing() -> None:
    await survive(LAYOUT, REQUESTS, [[Fault(Kind.BLACKHOLE, link)] for link in LINKS])
