"""Runs the profiles of one worker: one at a time, begun and ended between steps, always ended.

Owns the profile that runs and the outcome of the last one. Two threads take part: the recorder and
its counters belong to the device thread; limits of time, files and callers to the event loop. One
task owns a profile from its begin to its file, so it ends whether its caller stays or not. What a
profiler raises harms no step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from pagewire.kit.errors import (
    FailedPreconditionError,
    InternalError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.kit.logs import get_logger
from pagewire.kit.tasks import TaskOwner
from worker_svc.device_thread import DeviceThread
from worker_svc.profiling import (
    ProfileCall,
    ProfileResult,
    ProfilerFactory,
    ProfileTimes,
    StepProfiler,
    check_can_profile,
    check_profile_call,
    trace_path,
)
from worker_svc.step import SchedulerOutput

log = get_logger("worker_svc.profile_run")

T = TypeVar("T")


class WorkerProfiles:
    """One worker's profiles. Used on the event loop, but for `step`."""

    def __init__(
        self,
        device: DeviceThread,
        tasks: TaskOwner,
        directory: Path | None,
        make_profiler: ProfilerFactory,
    ) -> None:
        """Prepare.

        Args:
            device: Its thread is what is profiled.
            tasks: Owns the task of a profile.
            directory: Where traces go; None: no profile is made.
            make_profiler: Called on the device thread.
        """
        self._device = device
        self._tasks = tasks
        self._directory = directory
        self._make_profiler = make_profiler
        self._running: _Run | None = None
        self._last: _Run | None = None
        # Of the device thread alone.
        self._recorder: _Recorder | None = None

    async def start(self, call: ProfileCall, device: str, rank: int) -> Path:
        """Begin a profile behind the steps that are queued, and return where its trace will be.

        Args:
            call: Its name and limits.
            device: Kind of the device.
            rank: In the file's name.

        Raises:
            PagewireError: The call is wrong, there is no folder for traces or none can be written
                there, one runs already, or the device has no profiler.
        """
        if self._directory is None:
            raise FailedPreconditionError(
                "profiling is off: start `pagewire serve`, or the worker, with --profiler-dir",
                reason="NO_PROFILER_DIR",
            )
        check_profile_call(call)
        check_can_profile(device)
        if self._running is not None:
            raise FailedPreconditionError(
                "a profile runs already: wait for its end, or end it with StopProfile",
                reason="PROFILE_RUNNING",
            )
        run = self._running = _Run(call, trace_path(self._directory, call.name, rank))
        self._tasks.spawn(self._own(run, device), name="profile")
        await run.started.wait()
        if run.error is not None:
            raise run.error.with_traceback(None)
        return run.path

    async def result(self, *, wait: bool) -> ProfileResult:
        """The outcome of the profile that runs, or of the last one.

        Args:
            wait: Until it ends by its limits; else it is ended now.

        Raises:
            PagewireError: There was none, or its trace could not be written.
        """
        run = self._running or self._last
        if run is None:
            message = "no profile was started: call StartProfile first"
            raise FailedPreconditionError(message, reason="NO_PROFILE")
        if not wait:
            run.to_end.set()
        await run.ended.wait()
        if run.result is not None:
            return run.result
        if run.error is not None:
            raise run.error.with_traceback(None)
        raise ServiceUnavailableError("the worker ended", reason="SHUTTING_DOWN")

    async def interrupt(self) -> None:
        """End the profile that runs, before something that must not be in it.

        Returns when nothing is recorded any more; its trace may still be written.
        """
        if (run := self._running) is not None:
            run.to_end.set()
            await run.stopped.wait()

    async def close(self, timeout_s: float) -> None:
        """End the profile that runs, and let its trace be written if that is done in time."""
        if (run := self._running) is not None:
            run.to_end.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await run.ended.wait()

    def step(self, step: SchedulerOutput) -> AbstractContextManager[None]:
        """What a step runs in; on the device thread."""
        return nullcontext() if self._recorder is None else self._recorder.step(step)

    async def _own(self, run: _Run, device: str) -> None:
        """The whole life of a profile; never raises for what goes wrong in it."""
        try:
            run.result = await self._record(run, device)
            log.info("profile_written", path=str(run.path), num_steps=run.result.num_steps)
        except PagewireError as error:
            # Its frames hold what was recorded, and the run is kept.
            run.error = error.with_traceback(None)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            message = f"the trace cannot be written to {run.path.parent}: {reason}"
            run.error = FailedPreconditionError(message, reason="CANNOT_WRITE_TRACE")
        except Exception:
            log.exception("profile_failed")
            run.error = InternalError("the profile failed; the worker's log has more")
        finally:
            self._last, self._running = run, None
            for event in (run.started, run.stopped, run.ended):
                event.set()

    async def _record(self, run: _Run, device: str) -> ProfileResult:
        await asyncio.to_thread(run.path.parent.mkdir, parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()

        def end_soon() -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(run.to_end.set)

        recorder = await self._device.run(lambda: self._begin(device, run.call, end_soon))
        run.started.set()
        log.info("profile_started", path=str(run.path), max_steps=run.call.max_steps)
        with suppress(TimeoutError):
            async with asyncio.timeout(run.call.max_seconds):
                await run.to_end.wait()
        await self._device.run(self._end)
        run.stopped.set()
        times = await asyncio.to_thread(recorder.save, run.path)
        return ProfileResult(run.path, recorder.num_steps, recorder.duration_ns, times)

    def _begin(self, device: str, call: ProfileCall, end_soon: Callable[[], None]) -> _Recorder:
        """Runs on the device thread."""
        recorder = _Recorder(self._make_profiler(device), call.max_steps, end_soon)
        recorder.begin()
        self._recorder = recorder
        return recorder

    def _end(self) -> None:
        """Runs on the device thread."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.end()


class _Run:
    """A profile as the event loop sees it."""

    def __init__(self, call: ProfileCall, path: Path) -> None:
        self.call = call
        self.path = path
        self.started = asyncio.Event()
        self.to_end = asyncio.Event()
        self.stopped = asyncio.Event()
        """Nothing is recorded any more."""
        self.ended = asyncio.Event()
        self.result: ProfileResult | None = None
        self.error: PagewireError | None = None


class _Recorder:
    """A profile as the device thread sees it; after its end `save` may run on any thread."""

    def __init__(
        self, profiler: StepProfiler, max_steps: int, on_last_step: Callable[[], None]
    ) -> None:
        self.num_steps = 0
        self.duration_ns = 0
        self._profiler = profiler
        self._max_steps = max_steps
        self._on_last_step = on_last_step
        self._begin_ns = 0
        self._has_ended = False
        self._failure: Exception | None = None

    def begin(self) -> None:
        try:
            self._profiler.start()
        except Exception:
            # What has begun of it would stand in the way of the next one.
            self._attempt(self._profiler.stop)
            raise
        self._begin_ns = time.monotonic_ns()

    @contextmanager
    def step(self, step: SchedulerOutput) -> Iterator[None]:
        """Count and name a step; the last one, or one too much to hold, ends the profile."""
        if self._has_ended:
            yield
            return
        name = f"{len(step.handles)} requests, {step.total_num_scheduled_tokens} tokens"
        # What the profiler raises is no failure of the step: it would cost its requests.
        mark = ExitStack()
        self._attempt(lambda: mark.enter_context(self._profiler.step(name)))
        try:
            yield
        finally:
            self._attempt(mark.close)
            self.num_steps += 1
            if self._is_over():
                self.end()
                self._on_last_step()

    def end(self) -> None:
        """Record no more; idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        self.duration_ns = time.monotonic_ns() - self._begin_ns
        self._attempt(self._profiler.stop)

    def _is_over(self) -> bool:
        if self._failure is not None or self.num_steps == self._max_steps:
            return True
        return bool(self._attempt(self._profiler.after_step)) or self._failure is not None

    def _attempt(self, call: Callable[[], T]) -> T | None:
        """What a call to the profiler gives; what it raises is kept, the first of all."""
        try:
            return call()
        except Exception as error:
            self._failure = self._failure or error
            return None

    def save(self, path: Path) -> ProfileTimes:
        """Write the trace; see `StepProfiler.save`."""
        if self._failure is not None:
            raise self._failure
        return self._profiler.save(path)
