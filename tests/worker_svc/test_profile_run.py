"""A worker's profiles: begun and ended between steps, bounded, and harmless to what is served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pagewire.kit.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    PagewireError,
    UnimplementedError,
)
from tests.worker_svc.harness import BLOCK_SIZE, WAIT_S, ScriptedRunner, sim_config, write_model
from worker_svc.calls import InitializeCall, KvCacheCall, WorkerState
from worker_svc.execution import Execution
from worker_svc.lease import Lease
from worker_svc.profiling import OperatorTime, ProfileCall, ProfileTimes
from worker_svc.step import SchedulerOutput
from worker_svc.step_executor import StepDone
from worker_svc.worker import Worker

TIMES = ProfileTimes([OperatorTime("mm", 2, 70, 0)], 70, 0)


class ScriptedProfiler:
    """Says what was called, and fails as the test wants."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.threads: set[int] = set()
        self.start_error: Exception | None = None
        self.mark_error: Exception | None = None
        self.unmark_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.save_error: Exception | None = None
        self.cut_error: Exception | None = None
        self.is_full = False

    def start(self) -> None:
        self._note("start")
        if self.start_error is not None:
            raise self.start_error

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._note(f"begin {name}")
        if self.mark_error is not None:
            raise self.mark_error
        yield
        self._note("end")
        if self.unmark_error is not None:
            raise self.unmark_error

    def after_step(self) -> bool:
        if self.cut_error is not None:
            raise self.cut_error
        return self.is_full

    def stop(self) -> None:
        self._note("stop")
        if self.stop_error is not None:
            raise self.stop_error

    def save(self, path: Path) -> ProfileTimes:
        if self.save_error is not None:
            raise self.save_error
        path.write_text("trace")
        return TIMES

    def _note(self, event: str) -> None:
        self.log.append(event)
        self.threads.add(threading.get_ident())


class Setup:
    """A ready worker with a scripted runner and profiler."""

    def __init__(self, model: Path, directory: Path | None, device: str = "cpu") -> None:
        config = sim_config(model)
        self.config = replace(config, device=replace(config.device, device=device))
        self.runner = ScriptedRunner()
        self.profiler = ScriptedProfiler()
        self.directory = directory
        self.worker = Worker(
            lambda _: self.runner,
            WAIT_S,
            profiler_dir=directory,
            make_profiler=lambda _: self.profiler,
        )

    async def initialize(self, scheduler_id: str = "s1") -> Lease:
        call = InitializeCall(scheduler_id, 1, self.config, self.config.digest(), 0, 1, 1)
        events = [event async for event in self.worker.initialize(call)]
        lease: Lease = events[-1].lease  # type: ignore[union-attr]
        await self.worker.allocate_kv_cache(KvCacheCall(lease, 64, BLOCK_SIZE, 512))
        return lease

    async def run_steps(self, execution: Execution, first: int, last: int) -> None:
        for number in range(first, last + 1):
            outcome = await execution.submit(SchedulerOutput(number))
            assert isinstance(outcome, StepDone)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(write_model(tmp_path), tmp_path / "traces" / "new")
    setup.worker.start()
    yield setup
    await setup.worker.shut_down(WAIT_S)


async def test_a_profile_ends_after_its_steps_on_the_device_thread(setup: Setup) -> None:
    lease = await setup.initialize()
    with setup.worker.execution(lease, 1) as execution:
        await setup.run_steps(execution, 1, 1)
        path = await setup.worker.start_profile(ProfileCall("mine", max_steps=2))
        await setup.run_steps(execution, 2, 4)
        result = await setup.worker.profile_result(wait=True)
    step = ["begin 0 requests, 0 tokens", "end"]
    assert setup.profiler.log == ["start", *step, *step, "stop"]
    assert len(setup.profiler.threads) == 1
    assert threading.get_ident() not in setup.profiler.threads
    assert (result.path, result.num_steps, result.times) == (path, 2, TIMES)
    assert path.parent == setup.directory and path.name.startswith("mine-")
    assert "-rank0-" in path.name and path.read_text() == "trace"


async def test_a_profile_that_holds_too_much_ends(setup: Setup) -> None:
    lease = await setup.initialize()
    setup.profiler.is_full = True
    with setup.worker.execution(lease, 1) as execution:
        await setup.worker.start_profile(ProfileCall())
        await setup.run_steps(execution, 1, 3)
        assert (await setup.worker.profile_result(wait=True)).num_steps == 1


async def test_a_profile_ends_after_its_time_without_any_step(setup: Setup) -> None:
    await setup.initialize()
    await setup.worker.start_profile(ProfileCall(max_seconds=1))
    result = await setup.worker.profile_result(wait=True)
    assert result.num_steps == 0
    assert setup.profiler.log == ["start", "stop"]


async def test_a_profile_that_is_stopped_ends_now_and_says_so_again(setup: Setup) -> None:
    await setup.initialize()
    await setup.worker.start_profile(ProfileCall())
    waiting = asyncio.create_task(setup.worker.profile_result(wait=True))
    stopped = await setup.worker.profile_result(wait=False)
    assert await waiting == stopped
    assert await setup.worker.profile_result(wait=False) == stopped
    assert setup.profiler.log == ["start", "stop"]


async def test_one_profile_at_a_time_and_another_one_after_it(setup: Setup) -> None:
    await setup.initialize()
    first = await setup.worker.start_profile(ProfileCall())
    with pytest.raises(FailedPreconditionError) as caught:
        await setup.worker.start_profile(ProfileCall())
    assert caught.value.reason == "PROFILE_RUNNING"
    await setup.worker.profile_result(wait=False)
    assert await setup.worker.start_profile(ProfileCall()) != first


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (ProfileCall(name="../etc"), "name"),
        (ProfileCall(name=".hidden"), "name"),
        (ProfileCall(name="a" * 65), "name"),
        (ProfileCall(name="a\n"), "name"),
        (ProfileCall(max_steps=1001), "max_steps"),
        (ProfileCall(max_seconds=301), "max_seconds"),
    ],
)
async def test_a_call_beyond_the_bounds_is_refused(
    setup: Setup, call: ProfileCall, field: str
) -> None:
    await setup.initialize()
    with pytest.raises(InvalidRequestError) as caught:
        await setup.worker.start_profile(call)
    assert caught.value.field == field
    assert setup.profiler.log == []


async def test_without_a_folder_or_a_model_there_is_no_profile(
    setup: Setup, tmp_path: Path
) -> None:
    with pytest.raises(FailedPreconditionError, match="no model to profile"):
        await setup.worker.start_profile(ProfileCall())
    with pytest.raises(FailedPreconditionError, match="StartProfile first"):
        await setup.worker.profile_result(wait=False)
    off = Setup(tmp_path, None)
    off.worker.start()
    await off.initialize()
    with pytest.raises(FailedPreconditionError, match="--profiler-dir"):
        await off.worker.start_profile(ProfileCall())
    await off.worker.shut_down(WAIT_S)


async def test_the_simulated_worker_has_nothing_to_profile(tmp_path: Path) -> None:
    setup = Setup(write_model(tmp_path), tmp_path, device="sim")
    setup.worker.start()
    await setup.initialize()
    with pytest.raises(UnimplementedError, match="py-spy"):
        await setup.worker.start_profile(ProfileCall())
    await setup.worker.shut_down(WAIT_S)


async def test_a_folder_that_cannot_be_made_is_told_and_can_be_mended(setup: Setup) -> None:
    await setup.initialize()
    assert setup.directory is not None
    setup.directory.parent.write_text("a file")
    with pytest.raises(FailedPreconditionError) as caught:
        await setup.worker.start_profile(ProfileCall())
    assert caught.value.reason == "CANNOT_WRITE_TRACE"
    assert setup.profiler.log == []
    setup.directory.parent.unlink()
    await setup.worker.start_profile(ProfileCall())


@pytest.mark.parametrize(
    ("name", "raised", "expected"),
    [
        ("save_error", OSError(28, "No space left on device"), FailedPreconditionError),
        ("save_error", RuntimeError("internal detail"), InternalError),
        ("stop_error", RuntimeError("internal detail"), InternalError),
        ("cut_error", RuntimeError("internal detail"), InternalError),
        ("mark_error", RuntimeError("internal detail"), InternalError),
        ("unmark_error", RuntimeError("internal detail"), InternalError),
    ],
)
async def test_a_profile_that_fails_harms_no_step(
    setup: Setup, name: str, raised: Exception, expected: type[PagewireError]
) -> None:
    setattr(setup.profiler, name, raised)
    lease = await setup.initialize()
    with setup.worker.execution(lease, 1) as execution:
        await setup.worker.start_profile(ProfileCall(max_steps=2))
        await setup.run_steps(execution, 1, 2)
        with pytest.raises(expected) as caught:
            await setup.worker.profile_result(wait=True)
        assert "internal detail" not in caught.value.message
        setattr(setup.profiler, name, None)
        await setup.worker.start_profile(ProfileCall(max_steps=1))
        await setup.run_steps(execution, 3, 3)
        assert (await setup.worker.profile_result(wait=True)).num_steps == 1


async def test_a_profile_that_cannot_begin_leaves_nothing_begun(setup: Setup) -> None:
    await setup.initialize()
    setup.profiler.start_error = RuntimeError("internal detail")
    with pytest.raises(InternalError):
        await setup.worker.start_profile(ProfileCall())
    assert setup.profiler.log == ["start", "stop"]


async def test_what_is_kept_of_a_failure_does_not_grow(setup: Setup) -> None:
    await setup.initialize()
    setup.profiler.save_error = RuntimeError("internal detail")
    await setup.worker.start_profile(ProfileCall())
    depths = []
    for _ in range(3):
        with pytest.raises(InternalError) as caught:
            await setup.worker.profile_result(wait=False)
        depths.append(len(caught.traceback))
    assert depths[0] == depths[1] == depths[2]


async def test_a_caller_who_leaves_does_not_keep_the_profile_going(setup: Setup) -> None:
    lease = await setup.initialize()
    setup.runner.may_step.clear()
    with setup.worker.execution(lease, 1) as execution:
        outcome = execution.submit(SchedulerOutput(1))
        assert await asyncio.to_thread(setup.runner.stepping.wait, WAIT_S)
        starting = asyncio.create_task(setup.worker.start_profile(ProfileCall(max_steps=1)))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        setup.runner.may_step.set()
        await outcome
        await setup.worker.profile_result(wait=False)
    assert setup.profiler.log == ["start", "stop"]


async def test_a_load_comes_after_the_profile_has_ended(setup: Setup) -> None:
    await setup.initialize()
    await setup.worker.start_profile(ProfileCall())
    load_began: list[list[str]] = []
    setup.runner.load_hook = lambda: load_began.append(list(setup.profiler.log))
    model = replace(setup.config.model, max_model_len=100)
    setup.config = replace(setup.config, model=model)
    call = InitializeCall("s1", 1, setup.config, setup.config.digest(), 0, 1, 1)
    async for _ in setup.worker.initialize(call):
        pass
    assert load_began == [["start", "stop"]]


async def test_a_sleep_ends_the_profile(setup: Setup) -> None:
    lease = await setup.initialize()
    await setup.worker.start_profile(ProfileCall())
    await setup.worker.sleep(lease, 1)
    assert setup.profiler.log == ["start", "stop"]
    with pytest.raises(FailedPreconditionError):
        await setup.worker.start_profile(ProfileCall())


async def test_a_scheduler_that_comes_while_the_profile_ends_finds_the_worker_awake(
    setup: Setup,
) -> None:
    lease = await setup.initialize()
    with setup.worker.execution(lease, 1):
        pass
    await setup.worker.start_profile(ProfileCall())  # behind the end of the lease
    assert not setup.worker.status().lease_holder
    # The device has something to do, so the profile does not end at once.
    is_free = threading.Event()
    busy = asyncio.create_task(setup.worker.device.run(lambda: is_free.wait(WAIT_S)))
    sleeping = asyncio.create_task(setup.worker.sleep_unheld(1))
    await asyncio.sleep(0)
    coming = asyncio.create_task(setup.initialize("s2"))
    await asyncio.sleep(0)
    assert setup.worker.status().lease_holder == "s2"
    is_free.set()
    with pytest.raises(FailedPreconditionError, match="a scheduler holds this worker"):
        await sleeping
    await asyncio.gather(busy, coming)
    assert setup.worker.status().state is WorkerState.READY


async def test_a_worker_that_ends_writes_its_profile(tmp_path: Path) -> None:
    setup = Setup(write_model(tmp_path), tmp_path / "traces")
    setup.worker.start()
    await setup.initialize()
    path = await setup.worker.start_profile(ProfileCall())
    await setup.worker.shut_down(WAIT_S)
    assert path.read_text() == "trace"
