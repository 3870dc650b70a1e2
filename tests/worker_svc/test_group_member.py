"""A worker among ranks: what it tells, when it connects, and what becomes of it when it hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.engine_config import EngineConfig, ModelConfig, ParallelConfig
from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from tests.worker_svc.harness import (
    BLOCK_SIZE,
    WAIT_S,
    ScriptedRunner,
    sim_config,
    wait,
    write_model,
)
from worker_svc import group_member
from worker_svc.calls import InitializeCall, InitializeResult, KvCacheCall, RendezvousOpened
from worker_svc.parallel.layout import RankLayout
from worker_svc.step import Runner, SchedulerOutput
from worker_svc.worker import Worker


class ScriptedMembership:
    """Remembers what it is told; waits in `join` until the test or the worker ends that."""

    def __init__(self, layout: RankLayout, host: str, runner: ScriptedRunner) -> None:
        self.layout, self.host = layout, host
        self.calls: list[str] = []
        self.joining = threading.Event()
        self.may_join = True
        self._runner = runner

    def open(self) -> str:
        self.calls.append("open")
        return "127.0.0.1:9/key"

    def join(self, rendezvous: str, cancelled: threading.Event) -> None:
        self.calls.append(f"join {rendezvous}")
        self.joining.set()
        if not self.may_join:
            wait(cancelled)
            raise ServiceUnavailableError("given up")

    def leave(self) -> None:
        self.calls.append("leave")

    def make_runner(self, config: EngineConfig) -> Runner:
        return self._runner


class Setup:
    def __init__(self, model: Path) -> None:
        sim = sim_config(model)
        self.config = EngineConfig(
            model=ModelConfig(model=str(model)),
            cache=sim.cache,
            parallel=ParallelConfig(tensor_parallel_size=2),
        )
        self.runner = ScriptedRunner()
        self.memberships: list[ScriptedMembership] = []
        self.exited = asyncio.Event()
        self.worker = Worker(
            lambda config: self.runner,
            lease_timeout_s=WAIT_S,
            host="10.0.0.7",
            make_membership=self._make,
            exit_stuck=self.exited.set,
        )

    def _make(self, layout: RankLayout, host: str) -> ScriptedMembership:
        self.memberships.append(ScriptedMembership(layout, host, self.runner))
        return self.memberships[-1]

    def call(self, rank: int = 0, **fields: object) -> InitializeCall:
        rendezvous = "127.0.0.1:9/key" if rank else ""
        digest = self.config.digest()
        call = InitializeCall("s1", 1, self.config, digest, rank, 2, 1, rendezvous)
        return replace(call, **fields)  # type: ignore[arg-type]

    async def initialize(self, call: InitializeCall) -> InitializeResult:
        events = [event async for event in self.worker.initialize(call)]
        self.opened = [event for event in events if isinstance(event, RendezvousOpened)]
        assert isinstance(events[-1], InitializeResult)
        return events[-1]

    async def executing(self, rank: int = 0) -> InitializeResult:
        result = await self.initialize(self.call(rank))
        await self.worker.allocate_kv_cache(KvCacheCall(result.lease, 8, BLOCK_SIZE, 512))
        return result


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(write_model(tmp_path))
    setup.worker.start()
    yield setup
    setup.runner.may_step.set()
    await setup.worker.shut_down(WAIT_S)


async def test_rank_0_says_where_and_joins_when_it_has_loaded(setup: Setup) -> None:
    async with aclosing(setup.worker.initialize(setup.call())) as events:
        first = await anext(events)
        assert first == RendezvousOpened("127.0.0.1:9/key")
        assert setup.runner.num_loads == 0
        async for _ in events:
            pass
    (membership,) = setup.memberships
    assert (membership.layout, membership.host) == (RankLayout(0, 2), "10.0.0.7")
    assert membership.calls == ["open", "join "]


async def test_the_others_join_where_they_are_told(setup: Setup) -> None:
    await setup.initialize(setup.call(rank=1))
    assert setup.opened == []
    assert setup.memberships[0].calls == ["join 127.0.0.1:9/key"]


async def test_the_next_generation_keeps_weights_and_connects_anew(setup: Setup) -> None:
    result = await setup.executing()
    with setup.worker.execution(result.lease, 1):
        pass
    again = await setup.initialize(setup.call(group_generation=2))
    assert again.reused_weights and setup.runner.num_loads == 1
    (membership,) = setup.memberships
    assert membership.calls == ["open", "join ", "leave", "open", "join "]


async def test_another_rank_of_the_same_model_loads_its_own_part(setup: Setup) -> None:
    await setup.initialize(setup.call())
    result = await setup.initialize(setup.call(rank=1))
    assert not result.reused_weights and setup.runner.num_loads == 2
    assert [membership.layout.rank for membership in setup.memberships] == [0, 1]
    assert setup.worker.status().config_digest == setup.config.digest()


async def test_a_scheduler_that_goes_ends_the_wait_for_the_others(setup: Setup) -> None:
    await setup.initialize(setup.call())
    (membership,) = setup.memberships
    membership.may_join = False
    membership.joining.clear()
    task = asyncio.create_task(setup.initialize(setup.call()))
    assert await asyncio.to_thread(membership.joining.wait, WAIT_S)
    task.cancel()
    await asyncio.wait({task})
    assert setup.worker.status().lease_holder == ""
    membership.may_join = True
    await setup.initialize(setup.call(scheduler_id="s2"))


async def test_a_stream_that_ends_leaves_the_group(setup: Setup) -> None:
    result = await setup.executing()
    with setup.worker.execution(result.lease, 1):
        assert setup.memberships[0].calls == ["open", "join "]
    await setup.initialize(setup.call(scheduler_id="s2"))
    assert setup.memberships[0].calls[2] == "leave"
    assert not setup.exited.is_set()


async def test_a_rank_that_hangs_in_a_step_exits(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "FREE_TIMEOUT_S", 0.05)
    result = await setup.executing()
    setup.runner.may_step.clear()
    with setup.worker.execution(result.lease, 1) as execution:
        execution.submit(SchedulerOutput(1))
        assert await asyncio.to_thread(setup.runner.stepping.wait, WAIT_S)
    async with asyncio.timeout(WAIT_S):
        await setup.exited.wait()


async def test_a_single_worker_waits_for_its_step(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no peer that could hang it."""
    monkeypatch.setattr(group_member, "FREE_TIMEOUT_S", 0.0)
    config = replace(setup.config, parallel=ParallelConfig())
    call = setup.call(config=config, config_digest=config.digest(), world_size=1)
    result = await setup.initialize(call)
    await setup.worker.allocate_kv_cache(KvCacheCall(result.lease, 8, BLOCK_SIZE, 512))
    with setup.worker.execution(result.lease, 1):
        pass
    await setup.initialize(call)
    assert setup.memberships == [] and not setup.exited.is_set()


async def test_a_size_that_does_not_divide_is_refused_before_anything_is_made(
    setup: Setup,
) -> None:
    config = replace(setup.config, parallel=ParallelConfig(tensor_parallel_size=3))
    with pytest.raises(InvalidRequestError, match=r"may be 1, 2 or 4$"):
        await setup.initialize(setup.call(config=config, world_size=3))
    assert setup.memberships == [] and setup.runner.num_loads == 0
    assert setup.worker.status().lease_holder == ""


async def test_a_model_of_the_transformers_backend_is_refused(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("LlamaForCausalLM", "Olmo2ForCausalLM"))
    with pytest.raises(InvalidRequestError, match="architecture Olmo2ForCausalLM runs on the Tran"):
        await setup.initialize(setup.call())
    assert setup.memberships == []
