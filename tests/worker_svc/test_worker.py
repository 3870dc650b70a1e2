"""A worker's life: initialize, fail, start again, lose and regain its scheduler, end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagewire.engine_config import EngineConfig, ModelConfig
from pagewire.kit.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from tests.worker_svc.harness import (
    BLOCK_SIZE,
    WAIT_S,
    ScriptedRunner,
    sim_config,
    write_model,
)
from worker_svc.calls import InitializeCall, InitializeResult, KvCacheCall, WorkerState
from worker_svc.lease import Lease
from worker_svc.step import SchedulerOutput
from worker_svc.worker import Worker


class Setup:
    """A worker whose runners the test scripts, and calls to it."""

    def __init__(self, config: EngineConfig, num_replicas_here: int = 1) -> None:
        self.config = config
        self.runner = ScriptedRunner()
        self.worker = Worker(
            lambda config: self.runner,
            lease_timeout_s=WAIT_S,
            num_replicas_here=num_replicas_here,
        )

    def call(self, scheduler_id: str = "s1", **fields: object) -> InitializeCall:
        call = InitializeCall(scheduler_id, 1, self.config, self.config.digest(), 0, 1, 1)
        return replace(call, **fields)  # type: ignore[arg-type]

    async def initialize(self, call: InitializeCall | None = None) -> InitializeResult:
        events = [event async for event in self.worker.initialize(call or self.call())]
        assert isinstance(events[-1], InitializeResult)
        return events[-1]

    async def until_loading(self, call: InitializeCall) -> asyncio.Task[InitializeResult]:
        """Begin an Initialize, and wait until its load is under way."""
        self.runner.loading.clear()
        self.runner.may_load.clear()
        task = asyncio.create_task(self.initialize(call))
        assert await asyncio.to_thread(self.runner.loading.wait, WAIT_S)
        return task

    async def ready(self) -> Lease:
        lease = (await self.initialize()).lease
        await self.worker.allocate_kv_cache(KvCacheCall(lease, 8, BLOCK_SIZE, 512))
        return lease


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(sim_config(write_model(tmp_path)))
    setup.worker.start()
    yield setup
    setup.runner.may_load.set()
    setup.runner.may_step.set()
    await setup.worker.shut_down(WAIT_S)


def other_config(setup: Setup) -> EngineConfig:
    model = replace(setup.config.model, max_model_len=100)
    return replace(setup.config, model=model)


async def test_a_worker_is_blank_until_it_is_initialized(setup: Setup) -> None:
    assert setup.worker.status().state is WorkerState.BLANK
    result = await setup.initialize()
    assert not result.reused_weights
    assert result.model.bytes_per_block == 256 * BLOCK_SIZE
    status = setup.worker.status()
    assert status.state is WorkerState.LOADED
    assert status.lease_holder == "s1"
    assert status.config_digest == setup.config.digest()


async def test_the_device_is_prepared_before_anything_is_loaded(setup: Setup) -> None:
    order: list[str] = []
    setup.worker.prepare(lambda: order.append(f"prepared, loads: {setup.runner.num_loads}"))
    await setup.initialize()
    assert (order, setup.runner.num_loads) == (["prepared, loads: 0"], 1)


async def test_a_device_that_cannot_be_prepared_is_for_those_who_need_it_to_say(
    setup: Setup,
) -> None:
    def fail() -> None:
        raise ImportError("torch is not here")

    setup.worker.prepare(fail)
    await setup.initialize()
    assert setup.worker.status().state is WorkerState.LOADED


async def test_allocating_the_kv_cache_makes_it_ready(setup: Setup) -> None:
    await setup.ready()
    assert setup.worker.status().state is WorkerState.READY


async def test_progress_comes_before_the_result(setup: Setup) -> None:
    events = [event async for event in setup.worker.initialize(setup.call())]
    assert isinstance(events[-1], InitializeResult)
    assert len(events) > 1
    assert not any(isinstance(event, InitializeResult) for event in events[:-1])


async def test_the_same_digest_keeps_the_weights_and_drops_the_rest(setup: Setup) -> None:
    first = await setup.ready()
    second = await setup.initialize()
    assert second.reused_weights
    assert second.lease.token != first.token
    assert setup.runner.num_loads == 1
    assert setup.runner.num_resets >= 1
    assert setup.worker.status().state is WorkerState.LOADED


async def test_another_digest_loads_anew(setup: Setup) -> None:
    await setup.initialize()
    config = other_config(setup)
    result = await setup.initialize(setup.call(config=config, config_digest=config.digest()))
    assert not result.reused_weights
    assert setup.runner.num_loads == 2


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("tensor x is missing"), InvalidRequestError),
        (MemoryError(), FailedPreconditionError),
        (RuntimeError("internal detail"), InternalError),
        (ServiceUnavailableError("later"), ServiceUnavailableError),
    ],
)
async def test_a_failed_load_is_a_typed_error_and_leaves_a_blank_worker(
    setup: Setup, raised: Exception, expected: type[PagewireError]
) -> None:
    setup.runner.load_error = raised
    with pytest.raises(expected) as caught:
        await setup.initialize()
    assert "internal detail" not in caught.value.message
    status = setup.worker.status()
    assert (status.state, status.lease_holder) == (WorkerState.BLANK, "")
    setup.runner.load_error = None
    await setup.initialize(setup.call("s2"))


async def test_too_little_memory_says_how_much_is_missing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.runner, "available_kv_bytes", lambda: 1000)
    with pytest.raises(FailedPreconditionError, match="are missing; set --kv-cache-memory-bytes"):
        await setup.initialize()


@pytest.mark.parametrize(("device", "given_bytes"), [("cpu", None), ("cpu", 2**19), ("sim", None)])
async def test_replicas_of_a_machine_divide_what_it_has_left_for_kv(
    tmp_path: Path, device: Any, given_bytes: int | None
) -> None:
    config = sim_config(write_model(tmp_path))
    config = replace(
        config,
        device=replace(config.device, device=device),
        cache=replace(config.cache, kv_cache_memory_bytes=given_bytes),
    )
    setup = Setup(config, num_replicas_here=4)
    setup.worker.start()
    found = await setup.initialize()
    await setup.worker.shut_down(WAIT_S)
    all_bytes = setup.runner.available_kv_bytes()
    is_divided = (device, given_bytes) == ("cpu", None)
    assert found.available_kv_cache_bytes == all_bytes // (4 if is_divided else 1)


async def test_a_second_scheduler_is_refused_while_the_first_one_loads(setup: Setup) -> None:
    loading = await setup.until_loading(setup.call())
    assert setup.worker.status().state is WorkerState.INITIALIZING
    with pytest.raises(FailedPreconditionError) as caught:
        await setup.initialize(setup.call("s2"))
    assert caught.value.metadata == {"holder": "s1"}
    setup.runner.may_load.set()
    assert (await loading).lease.scheduler_id == "s1"


async def test_a_load_outlives_the_caller_who_went_away(setup: Setup) -> None:
    abandoned = await setup.until_loading(setup.call())
    abandoned.cancel()
    await asyncio.wait({abandoned})
    assert setup.worker.status().lease_holder == ""
    joining = asyncio.create_task(setup.initialize(setup.call("s2")))
    setup.runner.may_load.set()
    assert (await joining).lease.scheduler_id == "s2"
    assert setup.runner.num_loads == 1


async def test_an_abandoned_load_gives_way_to_another_model(setup: Setup) -> None:
    abandoned = await setup.until_loading(setup.call())
    abandoned.cancel()
    await asyncio.wait({abandoned})
    config = other_config(setup)
    call = setup.call("s2", config=config, config_digest=config.digest())
    following = asyncio.create_task(setup.initialize(call))
    setup.runner.may_load.set()
    assert (await following).model.digest == config.digest()
    assert setup.runner.num_loads == 2


async def test_a_caller_who_leaves_at_the_result_gives_the_lease_back(setup: Setup) -> None:
    async with aclosing(setup.worker.initialize(setup.call())) as events:
        async for event in events:
            if isinstance(event, InitializeResult):
                break
    assert setup.worker.status().lease_holder == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"world_size": 2},
        {"rank": 1},
        {"rendezvous": "127.0.0.1:1/key"},
        {"config_digest": ""},
        {"scheduler_id": ""},
    ],
)
async def test_a_wrong_call_is_refused(setup: Setup, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        await setup.initialize(setup.call(**fields))  # type: ignore[arg-type]
    assert setup.worker.status().lease_holder == ""


@pytest.mark.parametrize(
    "fields", [{"num_blocks": 1}, {"block_size": 8}, {"max_model_len": 513}, {"max_model_len": 0}]
)
async def test_an_impossible_kv_cache_is_refused(setup: Setup, fields: dict[str, Any]) -> None:
    lease = (await setup.initialize()).lease
    call = replace(KvCacheCall(lease, 8, BLOCK_SIZE, 512), **fields)
    with pytest.raises(InvalidRequestError):
        await setup.worker.allocate_kv_cache(call)


async def test_a_kv_cache_past_the_memory_says_how_much_is_missing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.config = replace(setup.config, device=replace(setup.config.device, device="cpu"))
    monkeypatch.setattr("worker_svc.worker.free_memory_bytes", lambda: 1000)
    lease = (await setup.initialize()).lease
    with pytest.raises(FailedPreconditionError, match="--num-gpu-blocks-override lower"):
        await setup.worker.allocate_kv_cache(KvCacheCall(lease, 8, BLOCK_SIZE, 512))
    assert setup.worker.status().state is WorkerState.LOADED


async def test_an_old_lease_allocates_nothing(setup: Setup) -> None:
    lease = (await setup.initialize()).lease
    await setup.initialize()
    with pytest.raises(FailedPreconditionError) as caught:
        await setup.worker.allocate_kv_cache(KvCacheCall(lease, 8, BLOCK_SIZE, 512))
    assert caught.value.reason == "LEASE_LOST"


async def test_steps_need_a_kv_cache(setup: Setup) -> None:
    lease = (await setup.initialize()).lease
    with pytest.raises(FailedPreconditionError), setup.worker.execution(lease, 1):
        pass


async def test_steps_of_another_generation_are_refused(setup: Setup) -> None:
    lease = await setup.ready()
    with pytest.raises(FailedPreconditionError), setup.worker.execution(lease, 2):
        pass


async def test_one_stream_at_a_time(setup: Setup) -> None:
    lease = await setup.ready()
    with (
        setup.worker.execution(lease, 1),
        pytest.raises(FailedPreconditionError),
        setup.worker.execution(lease, 1),
    ):
        pass


async def test_the_lease_ends_only_when_the_step_in_flight_is_done(setup: Setup) -> None:
    lease = await setup.ready()
    setup.runner.may_step.clear()
    with setup.worker.execution(lease, 1) as execution:
        execution.submit(SchedulerOutput(1))
        execution.submit(SchedulerOutput(2))
        assert await asyncio.to_thread(setup.runner.stepping.wait, WAIT_S)
    assert setup.worker.status().lease_holder == "s1"
    waiting = asyncio.create_task(setup.initialize(setup.call("s2")))
    setup.runner.may_step.set()
    assert (await waiting).lease.scheduler_id == "s2"
    assert [step.step for step in setup.runner.steps] == [1]  # the queued one was dropped


async def test_a_scheduler_that_lost_its_stream_takes_its_own_worker_back(setup: Setup) -> None:
    lease = await setup.ready()
    opened = asyncio.Event()

    async def stream() -> None:
        with setup.worker.execution(lease, 1) as execution:
            opened.set()
            await execution.stop.wait()

    old = asyncio.create_task(stream())
    await opened.wait()
    result = await setup.initialize()
    await old
    assert result.lease.token != lease.token


async def test_no_calls_are_taken_while_shutting_down(setup: Setup) -> None:
    await setup.worker.shut_down(WAIT_S)
    with pytest.raises(ServiceUnavailableError):
        await setup.initialize()


async def test_shutting_down_ends_a_load(setup: Setup) -> None:
    loading = await setup.until_loading(setup.call())

    async def let_it_go_on() -> None:
        setup.runner.may_load.set()

    await asyncio.gather(setup.worker.shut_down(WAIT_S), let_it_go_on())
    with pytest.raises(PagewireError):
        await loading


def with_tokenizer(setup: Setup, directory: Path) -> InitializeCall:
    """Ask for the model with a tokenizer from elsewhere."""
    model = replace(setup.config.model, tokenizer=str(directory))
    config = replace(setup.config, model=model)
    return setup.call(config=config, config_digest=config.digest())


@pytest.mark.parametrize("has_own", [False, True])
async def test_the_fingerprint_is_that_of_the_tokenizer_in_use(
    setup: Setup, tmp_path: Path, has_own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "tokenizer"
    elsewhere.mkdir()
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["one more"] = 10_000
    (elsewhere / "tokenizer.json").write_text(json.dumps(vocabulary))
    if not has_own:
        (tmp_path / "tokenizer.json").unlink()
    result = await setup.initialize(with_tokenizer(setup, elsewhere))
    assert result.model.tokenizer_fingerprint == fingerprint_of_model(elsewhere)
    assert ("tokenizer_is_not_the_models" in caplog.text) is has_own


async def test_a_tokenizer_that_is_not_there_ends_the_load(setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"--tokenizer: .*nowhere"):
        await setup.initialize(with_tokenizer(setup, tmp_path / "nowhere"))


async def test_a_model_without_a_tokenizer_has_an_empty_fingerprint(
    setup: Setup, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").unlink()
    assert (await setup.initialize()).model.tokenizer_fingerprint == ""


async def test_a_model_that_is_not_there_is_named(setup: Setup) -> None:
    config = replace(setup.config, model=ModelConfig(model="/nowhere"))
    with pytest.raises(InvalidRequestError, match="/nowhere"):
        await setup.initialize(setup.call(config=config))
