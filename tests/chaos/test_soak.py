"""Random chaos for a while: all that was sent ends, with the right tokens, and nothing leaks.

`make chaos` sets PAGEWIRE_CHAOS_SECONDS and PAGEWIRE_CHAOS_SEED; without them it is a short form.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.load import run_load
from tests.chaos.requests import mixed_requests
from tests.chaos.soak import LAYOUT, Soak
from tests.chaos.stack import chaos_stack

SECONDS = float(os.environ.get("PAGEWIRE_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("PAGEWIRE_CHAOS_SEED", "6"))
NUM_STREAMS = 32
NUM_TOKENS = 100
MAX_GROWTH = 0.05
MIN_SECONDS_FOR_GROWTH = 480
"""Below, what lives on has lived for less than two minutes at the middle, and fills its pools."""


@pytest.mark.timeout(SECONDS * 2 + 900)
async def test_random_chaos_loses_nothing() -> None:
    requests = mixed_requests(16, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(LAYOUT) as stack:
        targets = [stack.target(name) for name in LAYOUT.names("gateway")]
        async with open_stubs(targets) as stubs:
            expected = await ask_all(stubs[0], requests)
            async with run_load(stubs, requests, forgives_lost_gateways=True) as load:
                soak = Soak(stack, load, SEED, SECONDS)
                await soak.run()
                await load.finish()
                growth = soak.memory.growth(soak.middle_s, soak.end_s)
                report = {
                    "seconds": SECONDS,
                    "seed": SEED,
                    "faults": dict(sorted(soak.counts.items())),
                    "asked": load.num_asked,
                    "answers": load.num_answers,
                    "refused_before_admission": load.num_refusals,
                    "ended_with_their_gateway": load.num_lost,
                    "longest_pause_s": round(load.longest_pause_s, 2),
                    "memory_growth": {name: round(value, 4) for name, value in growth.items()},
                }
                print(json.dumps(report, indent=2))
                assert load.wrong(expected) == []
                ended = load.num_answers + load.num_refusals + load.num_lost
                assert load.num_asked == ended
            await wait_idle(stack)
    if SECONDS >= MIN_SECONDS_FOR_GROWTH:
        services = {name.partition("-")[0] for name in growth}
        assert services == {"gateway", "scheduler", "worker", "tokenizer"}, growth
        assert max(growth.values()) < MAX_GROWTH, growth
