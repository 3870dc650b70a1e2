"""Streams on two replicas while one process after another is killed, or stopped."""

from __future__ import annotations

import pytest

from tests.chaos.faults import Fault, Kind
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout
from tests.chaos.survive import survive

NUM_STREAMS = 64
NUM_TOKENS = 200
PROCESSES = ("worker-0", "scheduler-1", "tokenizer-0", "worker-1", "scheduler-0", "tokenizer-1")
REQUESTS = mixed_requests(6, NUM_STREAMS, NUM_TOKENS)


@pytest.mark.timeout(900)
async def test_streams_survive_the_loss_of_one_process_after_another() -> None:
    kills = [[Fault(Kind.KILL, name)] for name in PROCESSES[:3]]
    # Each takes 10 s to be noticed, so two at a time that do not meet.
    stops = [[Fault(Kind.STOP, "worker-0"), Fault(Kind.STOP, "tokenizer-0")]]
    await survive(Layout(), REQUESTS, [*kills, *stops])


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_streams_survive_the_loss_of_every_process() -> None:
    kinds = (Kind.KILL, Kind.STOP)
    await survive(Layout(), REQUESTS, [[Fault(kind, name)] for kind in kinds for name in PROCESSES])
