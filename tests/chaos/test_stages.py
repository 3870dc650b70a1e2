"""A fault at every stage of a request's life changes nothing of what its client gets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.chaos.answers import Answer, Stub, ask_all, open_stubs
from tests.chaos.checker import wait_idle
from tests.chaos.faults import Fault, Kind
from tests.chaos.load import run_load
from tests.chaos.requests import Request, mixed_requests
from tests.chaos.stack import ChaosStack, Layout, chaos_stack
from tests.chaos.stages import ENGINE, Stage, reach

NUM_STREAMS = 24
NUM_TOKENS = 40
LAYOUT = Layout(engine=ENGINE)
PROCESSES = ("worker-0", "scheduler-0", "tokenizer-0")


@dataclass(frozen=True)
class Scenario:
    """One round of requests and a fault."""

    stage: Stage
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault} {self.stage.value}"


def some_scenarios(seed: int) -> list[Scenario]:
    """Each stage once, and each process at least twice."""
    rng = random.Random(seed)
    names = [*PROCESSES, *PROCESSES, rng.choice(PROCESSES)]
    rng.shuffle(names)
    return [
        Scenario(stage, Fault(Kind.KILL, name)) for stage, name in zip(Stage, names, strict=True)
    ]


def all_scenarios() -> list[Scenario]:
    return [
        Scenario(stage, Fault(kind, name))
        for kind in (Kind.KILL, Kind.TERMINATE, Kind.STOP)
        for stage in Stage
        for name in PROCESSES
    ]


@pytest.mark.timeout(900)
async def test_a_kill_at_every_stage_changes_nothing() -> None:
    await play(some_scenarios(6))


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_every_fault_at_every_stage_changes_nothing() -> None:
    await play(all_scenarios())


async def play(scenarios: Sequence[Scenario]) -> None:
    requests = mixed_requests(15, NUM_STREAMS, NUM_TOKENS)
    async with chaos_stack(LAYOUT) as stack, open_stubs([stack.target("gateway-0")]) as stubs:
        expected = await ask_all(stubs[0], requests)
        for scenario in scenarios:
            wrong = await play_one(scenario, stack, stubs, requests, expected)
            assert wrong == [], f"{scenario}: {wrong}"
            await wait_idle(stack)


async def play_one(
    scenario: Scenario,
    stack: ChaosStack,
    stubs: Sequence[Stub],
    requests: Sequence[Request],
    expected: Sequence[Answer],
) -> list[str]:
    """Ask everything once, with the fault in between; return what came out wrong."""
    fault = scenario.fault
    struck = fault.strike(stack) if scenario.stage is Stage.ADMISSION else None
    async with run_load(stubs, requests) as load:
        draining = await reach(scenario.stage, stack, load, NUM_TOKENS)
        struck = struck or fault.strike(stack)
        await load.finish()
        await struck.heal(stack)
        if draining:
            await stack.wait_replaced("scheduler-0", draining)
        print(f"{scenario}: {load.summary()}", flush=True)
        return load.wrong(expected)
