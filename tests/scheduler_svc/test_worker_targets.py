"""The addresses behind the names of workers."""

import asyncio

import pytest

from scheduler_svc import worker_targets
from scheduler_svc.executor import (
    WorkerUnavailableError,
)
from scheduler_svc.worker_targets import resolve_workers


async def test_a_name_that_is_not_there_keeps_no_other_worker_away():
    nobody = "dns:///no-such-name.invalid:7"
    assert await resolve_workers([nobody, "a:1"]) == ["a:1"]
    with pytest.raises(WorkerUnavailableError, match="can't be resolved"):
        await resolve_workers([nobody])


async def test_names_are_asked_at_the_same_time_and_a_slow_one_is_left_out(monkeypatch):
    asked = set()
    both = asyncio.Event()

    async def resolve(target):
        asked.add(target)
        if len(asked) == 2:
            both.set()
        await both.wait()
        if "slow" in target:
            await asyncio.Event().wait()
        return ["10.0.0.1:7"]

    monkeypatch.setattr(worker_targets, "resolve", resolve)
    # Not before the quick one has answered.
    monkeypatch.setattr(worker_targets, "RESOLVE_TIMEOUT_S", 1.0)
    found = await resolve_workers(["dns:///slow:7", "dns:///quick:7", "a:1"])
    assert found == ["10.0.0.1:7", "a:1"]


async def test_a_dns_name_stands_for_its_addresses():
    assert await resolve_workers(["unix:/w", "dns:///127.0.0.1:7", "a:1"]) == [
        "unix:/w",
        "127.0.0.1:7",
        "a:1",
    ]
