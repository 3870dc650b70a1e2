"""What is told of replicas that come up one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from pagewire.cli import replicas
from pagewire.cli.addresses import Addresses
from pagewire.cli.replicas import ReplicaWatch
from pagewire.cli.stack_children import stack_children


class Told:
    """Keeps what is told."""

    def __init__(self, num_replicas: int) -> None:
        children = stack_children(num_replicas, 2)
        listen = {child.name: f"unix:/{child.name}" for child in children}
        addresses = Addresses("h:1", "h:2", listen, listen)
        self.up: list[str] = []
        self.said: list[str] = []
        self._changed = asyncio.Event()
        self.watch = ReplicaWatch(children, addresses, self._mark_up, self.said.append)

    async def next_up(self) -> None:
        """Wait until more children are told to be up."""
        self._changed.clear()
        await self._changed.wait()

    def _mark_up(self, names: Sequence[str]) -> None:
        self.up += names
        self._changed.set()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the scheduler at a place serve; none does at first."""
    begun = asyncio.Queue[int]()

    async def watch(targets: Sequence[str], _: str, on_serving: Callable[[int], None]) -> None:
        assert targets == ["unix:/scheduler-0", "unix:/scheduler-1", "unix:/scheduler-2"]
        for _each in targets:
            on_serving(await begun.get())

    monkeypatch.setattr(replicas, "watch_serving", watch)
    return begun.put_nowait


async def test_replicas_are_told_of_that_the_ready_line_did_not_count(
    serving: Callable[[int], None],
) -> None:
    told = Told(3)
    for place in (2, 0, 1):
        serving(place)
    await told.watch.watch(num_told=1)
    assert told.said == [
        "pagewire: 2 of 3 replicas are up",
        "pagewire: 3 of 3 replicas are up",
    ]


async def test_only_what_has_been_up_is_marked(serving: Callable[[int], None]) -> None:
    told = Told(3)
    assert await told.watch.begin() == 1, "of those that are asked none answers"
    assert told.up == ["gateway", "tokenizer"]
    watching = asyncio.create_task(told.watch.watch(num_told=1))
    serving(1)
    async with asyncio.timeout(20):
        await told.next_up()
    assert told.up[2:] == ["scheduler-1", "worker-1-0", "worker-1-1"]
    watching.cancel()
    await asyncio.wait({watching})


async def test_a_single_replica_is_up_with_the_gateway() -> None:
    told = Told(1)
    assert await told.watch.begin() == 1
    await told.watch.watch(num_told=1)
    assert set(told.up) == {"gateway", "tokenizer", "scheduler", "worker-0", "worker-1"}
    assert told.said == []
