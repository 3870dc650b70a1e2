"""Steps under way: planned, sent, answered in order, or taken back.

With asynchronous scheduling the next step is planned and sent while one runs, so that the worker
finds it queued when it is done; with several pipeline stages one more for each. It owns the steps
that have no answer yet and the masks that they wait for. What a step's answer means to clients is
its owner's, `engine_core`, whose loop calls `run`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pagewire.kit.logs import get_logger
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.engine_state import EngineCounters
from scheduler_svc.executor import Executor, StepFailedError, WorkerLostError
from scheduler_svc.grammar import GrammarError
from scheduler_svc.grammar_compiler import GrammarCompiler
from scheduler_svc.liveness import LivenessGuard
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.step_figures import StepTimings

MAX_STEPS_IN_FLIGHT = 2
"""With asynchronous scheduling: one runs, one is queued behind it. One more a further stage."""
STALL_RETRY_S = 0.1

log = get_logger("scheduler_svc.step_pipeline")


class StepOwner(Protocol):
    """Whoever the steps are run for."""

    @property
    def may_send(self) -> bool:
        """Whether steps may go to the worker now."""

    def put_outputs(self, outputs: Mapping[int, EngineCoreOutputs], timings: StepTimings) -> None:
        """Take what a step gave, by client, before the next step's masks are made."""

    def suspect(self, counts: Mapping[str, int]) -> None:
        """End requests on which workers failed again and again.

        Args:
            counts: How often each request of the failed steps has been suspected by now.
        """

    def fail_grammar(self, request_id: str, error: GrammarError) -> None:
        """End a request whose masks could not be made."""

    def note_idle(self) -> None:
        """Note that there are fewer requests or steps than before."""


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A step that was sent and has no answer yet."""

    output: SchedulerOutput
    schedule_ns: int
    """How long it took to plan."""
    sent_ns: int
    follows_work: bool
    """There was work all the time since the step before."""

    def timings(self, result: ModelRunnerOutput) -> StepTimings:
        answered_ns = time.perf_counter_ns()
        return StepTimings(
            schedule_ns=self.schedule_ns,
            execute_ns=answered_ns - self.sent_ns,
            forward_ns=result.forward_ns,
            sample_ns=result.sample_ns,
            idle_ns=result.idle_ns,
            prepare_ns=result.prepare_ns,
            queue_ns=result.queue_ns,
            busy_ns=result.busy_ns,
            answered_ns=answered_ns,
        )


class StepPipeline:
    """The steps of one engine on one worker after another."""

    def __init__(
        self,
        owner: StepOwner,
        executor: Executor,
        grammars: GrammarCompiler,
        counters: EngineCounters,
        liveness: LivenessGuard,
        *,
        is_async: bool,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.num_failed_steps = 0
        """In a row, up to now."""
        self._owner = owner
        self._executor = executor
        self._grammars = grammars
        self._counters = counters
        self._liveness = liveness
        self._clock = clock
        self._sleep = sleep
        self._in_flight: deque[_StepInFlight] = deque()
        max_in_flight = MAX_STEPS_IN_FLIGHT if is_async else 1
        self._max_in_flight = max_in_flight + executor.num_stages - 1
        self._follows_work = False
        self._wake = asyncio.Event()

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def wake(self) -> None:
        """Look again whether there is work; from any callback of the loop."""
        self._wake.set()

    def clear(self) -> None:
        """Forget what was under way on a worker that is lost."""
        self._in_flight.clear()
        self._follows_work = False

    async def run(self, scheduler: Scheduler) -> None:
        """Keep the worker supplied with steps; returns only by raising.

        Raises:
            WorkerLostError: There is no worker any more.
        """
        while True:
            await self._send_steps(scheduler)
            if self._in_flight:
                await self._receive_step(scheduler)
            elif self._executor.lost_reason is not None:
                raise WorkerLostError(self._executor.lost_reason)
            elif scheduler.can_schedule:
                # Admission checks rule this out; trying again beats a hang if they are wrong.
                await self._sleep(STALL_RETRY_S)
            else:
                await self._wait_for_work()

    async def _send_steps(self, scheduler: Scheduler) -> None:
        """Plan and send steps up to the bound, while there is something to compute or to tell."""
        while self._has_room and scheduler.has_work:
            started_ns = time.perf_counter_ns()
            output = scheduler.schedule(self._clock())
            self._guard_liveness(scheduler, output)
            if output.is_empty:
                return  # Everything waits for what is under way.
            sent_ns = time.perf_counter_ns()
            step = _StepInFlight(output, sent_ns - started_ns, sent_ns, self._follows_work)
            self._follows_work = True
            self._in_flight.append(step)
            try:
                await self._executor.send(output)
            except WorkerLostError as error:
                self._in_flight.pop()  # whatever ended the worker, it was not this one
                self._on_step_failed(scheduler, error)
                raise
            if len(self._in_flight) == 1:
                await self._send_masks(scheduler, step)

    @property
    def _has_room(self) -> bool:
        is_free = len(self._in_flight) < self._max_in_flight
        return is_free and self._owner.may_send and self._executor.lost_reason is None

    async def _receive_step(self, scheduler: Scheduler) -> None:
        try:
            result = await self._executor.receive()
        except WorkerLostError as error:
            self._on_step_failed(scheduler, error)
            raise
        except StepFailedError as error:
            self._on_step_failed(scheduler, error)
            await self._take_back_steps(scheduler)
            return
        step = self._in_flight.popleft()
        self.num_failed_steps = 0
        # Aborts that came while the step ran have been applied: they win over its tokens.
        outputs = scheduler.update_from_output(step.output, result)
        if step.follows_work and step.output.requests:
            self._counters.worker_idle_ns += result.idle_ns
        self._owner.put_outputs(outputs, step.timings(result))
        self._owner.note_idle()
        if self._in_flight:
            await self._send_masks(scheduler, self._in_flight[0])

    async def _send_masks(self, scheduler: Scheduler, step: _StepInFlight) -> None:
        """Send the grammar masks of the oldest step under way: all tokens before it are known.

        The worker computes meanwhile and waits for them only before it draws.
        """
        output = step.output
        if not output.masked_rows:
            return
        rows = scheduler.rows_to_mask(output)
        results = await self._grammars.masks(list(rows.values()))
        masks = {}
        for row, result in zip(rows, results, strict=True):
            request = output.requests[row]
            if request.ignores_outputs_of(output.step):
                continue  # it ended meanwhile, and its id may be another's by now
            if isinstance(result, GrammarError):
                self._owner.fail_grammar(request.request_id, result)
            else:
                masks[row] = result
        try:
            await self._executor.send_masks(output, masks)
        except WorkerLostError as error:
            self._on_step_failed(scheduler, error)
            raise

    async def _wait_for_work(self) -> None:
        self._follows_work = False
        self._wake.clear()
        await self._wake.wait()

    async def _take_back_steps(self, scheduler: Scheduler) -> None:
        """Undo the step that failed, and those sent behind it: they were planned upon it.

        The worker lives. It knows no request of the failed step any more; what it answers to the
        later steps, failed or not, is in doubt too.
        """
        outputs: list[SchedulerOutput] = []
        while self._in_flight:
            output = self._in_flight[0].output
            if outputs:
                if output.masked_rows:
                    await self._executor.send_masks(output, {})
                with suppress(StepFailedError):
                    await self._executor.receive()
            outputs.append(self._in_flight.popleft().output)
        num_preempted = scheduler.take_back_steps(outputs)
        log.warning("steps_taken_back", num_steps=len(outputs), num_preempted=num_preempted)
        self._owner.note_idle()

    def _guard_liveness(self, scheduler: Scheduler, output: SchedulerOutput) -> None:
        could_progress = (
            not self._in_flight and scheduler.num_running == 0 and scheduler.can_schedule
        )
        has_progress = bool(output.requests)
        if self._liveness.observe(could_progress=could_progress, has_progress=has_progress):
            stats = scheduler.make_stats()
            log.error(
                "scheduler_stalled",
                num_waiting=stats.num_requests_waiting,
                num_free_blocks=stats.num_free_blocks,
                num_blocks=stats.num_blocks,
            )

    def _on_step_failed(
        self, scheduler: Scheduler, error: WorkerLostError | StepFailedError
    ) -> None:
        # A worker that lives failed the oldest step. One that died may have been at the next one:
        # the answer to the oldest is lost with it.
        outputs = [step.output for step in self._in_flight]
        suspected = outputs[:1] if isinstance(error, StepFailedError) else outputs
        self.num_failed_steps += 1
        log.error(
            "step_failed",
            steps=[output.step for output in suspected],
            reason=str(error),
            in_a_row=self.num_failed_steps,
        )
        self._owner.suspect(scheduler.suspect_steps(suspected))
