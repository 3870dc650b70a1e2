"""The engine: claim a worker, run steps on it, lose it, claim it again; add and abort meanwhile.

It owns the `Scheduler`, the `Executor`, the steps (`step_pipeline`) and the clients
(`engine_clients`). It does not know gRPC. Everything runs on one event loop: clients add and abort
directly, between awaits of the loop, so nothing here is locked, and aborts, adds and administration
take effect between steps planned. `run` is one task; the composition root owns it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import ServiceUnavailableError
from pagewire.kit.logs import get_logger
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.engine_clients import EngineClients, going_away
from scheduler_svc.engine_info import EngineInfo
from scheduler_svc.engine_setup import (
    check_same_engine,
    make_block_lives,
    make_kv_events,
    make_scheduler,
)
from scheduler_svc.engine_state import EngineCounters, EngineState, OutputSink
from scheduler_svc.executor import Executor, KvCachePlan, WorkerFacts, WorkerLostError, WorkerPulse
from scheduler_svc.grammar import GrammarError
from scheduler_svc.grammar_compiler import GrammarCompiler, GrammarModel
from scheduler_svc.liveness import LivenessGuard
from scheduler_svc.pause import PauseMode, PauseState
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.request_intake import RequestIntake
from scheduler_svc.scheduler import ABORTED
from scheduler_svc.sleep import EngineSleep
from scheduler_svc.step_figures import SchedulerStats, StepTimings
from scheduler_svc.step_pipeline import StepPipeline
from scheduler_svc.stillness import Stillness, wait_drained
from scheduler_svc.stop import Stop
from scheduler_svc.worker_search import claim_worker

log = get_logger("scheduler_svc.engine_core")


class EngineCore:
    """One engine.

    States: STARTING until the first worker is ready, then READY and RECOVERING in turns. Requests
    are taken in READY and in RECOVERING, until a drain begins.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        grammars: GrammarCompiler | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self.counters = EngineCounters()
        self.state = EngineState.STARTING
        self.info: EngineInfo | None = None
        self.on_state: Callable[[EngineState], None] = lambda state: None
        self._executor = executor
        # Without an address of a tokenizer it refuses every form.
        self._grammars = grammars or GrammarCompiler(config.structured_outputs, ())
        self._clock = clock
        self._sleep = sleep
        self._clients = EngineClients()
        self._intake = RequestIntake(
            config.structured_outputs, self._grammars, self._clients, self._changed
        )
        self._stillness = Stillness()
        self._drain_ends_s: float | None = None
        self.liveness = LivenessGuard()
        self.kv_events = make_kv_events(config)
        self.block_lives = make_block_lives(config)
        """Of a sample of KV blocks, where it is asked for."""
        self._steps = StepPipeline(
            self,
            executor,
            self._grammars,
            self.counters,
            self.liveness,
            is_async=config.scheduler.async_scheduling,
            clock=clock,
            sleep=sleep,
        )
        self.sleep = EngineSleep(self, executor)
        executor.on_lost = self._steps.wake

    def attach(self, sink: OutputSink) -> int:
        """Add a client; returns the id that its requests carry."""
        client_id = self._clients.add(sink)
        sink.set_recovering(self.state is EngineState.RECOVERING)
        if self._drain_ends_s is not None:
            sink.set_draining(max(0.0, self._drain_ends_s - self._clock()))
        return client_id

    def detach(self, client_id: int, request_ids: Iterable[str]) -> None:
        """Remove a client and abort its requests without telling it. Idempotent."""
        self._clients.remove(client_id)
        self._intake.end(request_ids)
        self._changed()

    def add_request(self, request: EngineCoreRequest) -> bool:
        """Queue a request.

        Returns:
            Whether it is taken. Else that depends on its grammar: its client hears `put_admitted`,
            or an end, before anything else.

        Raises:
            PagewireError: It is refused.
        """
        if self._drain_ends_s is not None:
            raise going_away()
        is_taken = self._intake.add(request, self._clock())
        self._steps.wake()
        return is_taken

    def finish_requests(self, request_ids: Iterable[str], stop: Stop = ABORTED) -> None:
        """End requests and tell their clients; unknown ids are passed over."""
        self._intake.end_and_tell(request_ids, stop)
        self._changed()

    def require_info(self) -> EngineInfo:
        """What the engine serves.

        Raises:
            ServiceUnavailableError: No worker has been ready yet.
        """
        if self.info is None:
            raise ServiceUnavailableError("the engine is starting", reason="STARTING")
        return self.info

    @property
    def pause_state(self) -> PauseState:
        return (
            PauseState.UNPAUSED
            if self._intake.scheduler is None
            else self._intake.scheduler.pause_state
        )

    def worker_pulses(self) -> Sequence[WorkerPulse]:
        """What the workers' heartbeats told last."""
        return self._executor.pulses()

    def make_stats(self) -> SchedulerStats | None:
        """The scheduler's figures; None before the first worker is ready."""
        scheduler = self._intake.scheduler
        return None if scheduler is None else scheduler.make_stats()

    def cached_hashes(self) -> list[bytes]:
        """The hashes that a follower of all KV events so far knows, in no order."""
        return (
            []
            if self._intake.scheduler is None
            else self._intake.scheduler.kv_cache.cached_hashes()
        )

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Forget cached prefixes.

        Returns:
            False, and nothing is done, while requests hold blocks.
        """
        scheduler = self._intake.require_scheduler()
        reset = scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)
        self._changed()
        return reset

    async def pause(self, mode: PauseMode) -> None:
        """Begin a pause, which lasts until `resume`, and wait until nothing moves any more.

        A caller that stops waiting leaves the pause on.
        """
        scheduler = self._intake.require_scheduler()
        log.info("paused", mode=mode.value)
        scheduler.pause_state = mode.state
        if mode is PauseMode.ABORT:
            self._intake.end_and_tell(None)
        self._changed()
        await self._stillness.wait_quiet()

    async def wait_settled(self) -> None:
        """Wait until, in a pause, no step is under way and the worker has heard of every end."""
        self._changed()
        await self._stillness.wait_settled()

    def resume(self) -> None:
        """End a pause; without one, nothing happens.

        Raises:
            PagewireError: The engine is starting, or sleeps.
        """
        self.sleep.check_awake()
        self._intake.require_scheduler().pause_state = PauseState.UNPAUSED
        log.info("resumed")
        self._changed()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, let the others finish, then let go of all clients.

        What has not finished by then ends here without a word to its client but the end of its
        stream: a gateway takes it elsewhere.
        """
        self._drain_ends_s = self._clock() + timeout_s
        self._clients.set_draining(timeout_s)
        scheduler = self._intake.scheduler
        if scheduler is not None and scheduler.has_requests:
            self.note_idle()
            await wait_drained(scheduler, self._stillness, timeout_s)
        self._clients.end(going_away)
        self._intake.end(None)

    # The loop.

    async def run(self) -> None:
        """Claim a worker, run steps until it is lost, again and again, until cancelled.

        Raises:
            PagewireError: The first worker refused the configuration, or it does not fit.
        """
        while True:
            await claim_worker(
                self._try_claim,
                num_failed_steps=self._steps.num_failed_steps,
                is_first=self.state is EngineState.STARTING,
                sleep=self._sleep,
            )
            self._set_state(EngineState.READY)
            try:
                await self._steps.run(self._intake.require_scheduler())
            except WorkerLostError as error:
                self._on_worker_lost(str(error))

    async def _try_claim(self) -> None:
        facts = await self._executor.initialize()
        await self._executor.allocate_kv_cache(self._settle(facts))
        await self.sleep.reapply()

    def _settle(self, facts: WorkerFacts) -> KvCachePlan:
        """Size the engine by its first worker; hold every later one to that."""
        if self.info is not None:
            check_same_engine(self.info, facts)
            return self.info.kv_cache
        self.info, self._intake.scheduler = make_scheduler(
            self.config, facts, self.kv_events, self.block_lives
        )
        fingerprint = facts.model_info.tokenizer_fingerprint
        self._grammars.open(GrammarModel(facts.vocab_size, facts.eos_token_ids, fingerprint))
        return self.info.kv_cache

    # For the steps.

    @property
    def may_send(self) -> bool:
        return self.sleep.level == 0

    def put_outputs(self, outputs: Mapping[int, EngineCoreOutputs], timings: StepTimings) -> None:
        self.counters.count_step(outputs, self._intake.require_scheduler().num_prefilled_tokens)
        self.counters.steps += timings
        self._clients.put_outputs(outputs, timings)

    def suspect(self, counts: Mapping[str, int]) -> None:
        self._intake.suspect(counts)
        self.note_idle()

    def fail_grammar(self, request_id: str, error: GrammarError) -> None:
        self._intake.fail_grammar(request_id, error)

    def note_idle(self) -> None:
        self._stillness.note(self._intake.require_scheduler(), self._steps.num_in_flight)

    def _on_worker_lost(self, reason: str) -> None:
        scheduler = self._intake.require_scheduler()
        self.counters.num_workers_lost += 1
        log.warning("worker_lost", reason=reason, num_running=scheduler.num_running)
        self._steps.clear()
        scheduler.forget_worker()
        self.note_idle()
        self._set_state(EngineState.RECOVERING)

    def _set_state(self, state: EngineState) -> None:
        if state is self.state:
            return
        self.state = state
        log.info("engine_state", state=state.value)
        self._clients.set_recovering(state is EngineState.RECOVERING)
        self.on_state(state)

    def _changed(self) -> None:
        if self._intake.scheduler is not None:
            self.note_idle()
        self._steps.wake()
