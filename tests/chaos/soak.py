"""Random faults for a while, on everything, and what the stack's memory does meanwhile.

A round is one or two faults that do not meet, a random while, their healing, and then progress of
every client: a request is ended for good once three workers died of it without a token in between.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.faults import Fault, Kind, Struck
from tests.chaos.load import Load
from tests.chaos.stack import ChaosStack, Layout

LINKS = (
    ("gateway-0", "scheduler-0"),
    ("gateway-1", "scheduler-1"),
    ("gateway-0", "tokenizer-0"),
    ("scheduler-0", "worker-0"),
    ("scheduler-1", "worker-1"),
)
LAYOUT = Layout(num_gateways=2, proxied=LINKS)
LONGEST_FAULT_S = 14.0
"""Past the 10 s of silence after which a peer counts as lost."""
_SAMPLE_S = 1.0
_MIN_SAMPLES = 5


@dataclass
class Memory:
    """Resident bytes of each process, by name and process id, over time."""

    samples: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)

    def take(self, stack: ChaosStack) -> None:
        now_s = time.monotonic()
        for name, resident in stack.resident_bytes().items():
            pid = stack.pid(name) or 0
            self.samples.setdefault((name, pid), []).append((now_s, resident))

    def growth(self, start_s: float, end_s: float) -> dict[str, float]:
        """Growth of each process that lived all the time: its last tenth against its first."""
        tenth_s = (end_s - start_s) / 10
        growths = {}
        for (name, _), samples in self.samples.items():
            first = [size for at_s, size in samples if start_s <= at_s <= start_s + tenth_s]
            last = [size for at_s, size in samples if end_s - tenth_s <= at_s <= end_s]
            if len(first) >= _MIN_SAMPLES and len(last) >= _MIN_SAMPLES:
                growths[name] = median(last) / median(first) - 1
        return growths


class Soak:
    """One run of chaos on a stack under load."""

    def __init__(self, stack: ChaosStack, load: Load, seed: int, seconds: float) -> None:
        self.memory = Memory()
        self.counts: Counter[str] = Counter()
        self._stack = stack
        self._load = load
        self._rng = random.Random(seed)
        self.start_s = time.monotonic()
        self.middle_s = self.start_s + seconds / 2
        # The map keeps two minutes of samples, and a process that has just started has none.
        self._kept_from_s = self.start_s + seconds / 4
        self.end_s = self.start_s + seconds

    async def run(self) -> None:
        """Play rounds until the time is over; everything is healed then."""
        sampling = asyncio.create_task(self._sample())
        try:
            while time.monotonic() < self.end_s:
                await self._round()
            if sampling.done():
                sampling.result()  # raises
        finally:
            sampling.cancel()

    async def _round(self) -> None:
        faults = self._choose()
        await self._load.wait_under_way()
        struck = [self._strike(fault) for fault in faults]
        lasts_s = self._rng.choice([0.1, 1.0, LONGEST_FAULT_S])
        if all(fault.kind in (Kind.KILL, Kind.TERMINATE, Kind.RESET) for fault in faults):
            lasts_s = 0.0
        await asyncio.sleep(min(lasts_s, max(0.0, self.end_s - time.monotonic())))
        for each in struck:
            await each.heal(self._stack)
        await self._load.wait_progress()

    def _strike(self, fault: Fault) -> Struck:
        self.counts[str(fault)] += 1
        return fault.strike(self._stack)

    def _choose(self) -> Sequence[Fault]:
        """One fault, or one on each of two services that are not the same."""
        services = self._rng.sample(["worker", "scheduler", "tokenizer", "gateway", "link"], 2)
        if {"worker", "scheduler", "link"}.issuperset(services):
            services.pop()  # together they could stop every replica
        return [self._choose_for(service) for service in services[: self._rng.choice([1, 1, 2])]]

    def _choose_for(self, service: str) -> Fault:
        rng = self._rng
        if service == "link":
            kinds = (Kind.RESET, Kind.DELAY, Kind.BLACKHOLE)
            return Fault(rng.choice(kinds), rng.choice(LINKS))
        number = rng.randrange(2)
        kinds = (Kind.KILL, Kind.KILL, Kind.TERMINATE, Kind.STOP)
        kind = rng.choice(kinds)
        if number == 1 and time.monotonic() > self._kept_from_s:
            kind = Kind.STOP  # one of each lives on, so that its memory can be watched
        return Fault(kind, f"{service}-{number}")

    async def _sample(self) -> None:
        while True:
            self.memory.take(self._stack)
            await asyncio.sleep(_SAMPLE_S)
