"""The engine: claim a worker, run steps on it, lose it, claim it again; add and abort meanwhile.

It owns the `Scheduler`, the `Executor`, the steps (`step_pipeline`) and the list of clients
(`OutputSink`s: gateway streams and direct callers). It does not know gRPC. Everything runs on one
event loop: clients add and abort directly, between awaits of the loop, so nothing here is locked,
and aborts, adds and administration take effect between steps planned. `run` is one task; the
composition root owns it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count

from pagewire.engine_config import EngineConfig
from pagewire.kit.errors import PagewireError, ServiceUnavailableError
from pagewire.kit.logs import get_logger
from scheduler_svc.admission import check_grammar_size
from scheduler_svc.block_lives import BlockLives
from scheduler_svc.drafter import make_drafter
from scheduler_svc.engine_info import EngineInfo, engine_fingerprint, make_limits
from scheduler_svc.engine_state import EngineCounters, EngineState, OutputSink
from scheduler_svc.executor import (
    Executor,
    KvCachePlan,
    WorkerFacts,
    WorkerLostError,
    WorkerPulse,
    WorkerUnavailableError,
)
from scheduler_svc.grammar import Grammar, GrammarError
from scheduler_svc.grammar_compiler import GrammarCompiler, GrammarModel
from scheduler_svc.kv_events import KvEventLog
from scheduler_svc.kv_sizing import plan_kv_cache
from scheduler_svc.liveness import LivenessGuard
from scheduler_svc.output import (
    EngineCoreOutputs,
    FinishedRequest,
    SchedulerStats,
    StepTimings,
)
from scheduler_svc.pause import PauseMode, PauseState
from scheduler_svc.quiet_waiter import QuietWaiter
from scheduler_svc.request import EngineCoreRequest
from scheduler_svc.scheduler import ABORTED, Scheduler
from scheduler_svc.sleep import EngineSleep
from scheduler_svc.step_pipeline import StepPipeline
from scheduler_svc.stop import FinishReason, Stop
from scheduler_svc.suspicion import final

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
# Enough for any wait; two to the power of thousands is no float.
_MAX_DOUBLINGS = 16
SUSPECTED = Stop(FinishReason.ERROR, error_reason="REQUEST_SUSPECTED")
SUSPECTED_MESSAGE = "workers failed again and again on this request"

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
        self._scheduler: Scheduler | None = None
        self._sinks: dict[int, OutputSink] = {}
        self._client_ids = count(1)
        self._idle = asyncio.Event()
        self._drain_ends_s: float | None = None
        self._quiet = QuietWaiter()
        self.liveness = LivenessGuard()
        self.kv_events = _make_kv_events(config)
        observed = config.observability
        self.block_lives = (
            BlockLives(observed.kv_cache_metrics_sample) if observed.kv_cache_metrics else None
        )
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
        self._settled = asyncio.Event()
        executor.on_lost = self._steps.wake

    # For clients.

    def attach(self, sink: OutputSink) -> int:
        """Add a client; returns the id that its requests carry."""
        client_id = next(self._client_ids)
        self._sinks[client_id] = sink
        sink.set_recovering(self.state is EngineState.RECOVERING)
        if self._drain_ends_s is not None:
            sink.set_draining(max(0.0, self._drain_ends_s - self._clock()))
        return client_id

    def detach(self, client_id: int, request_ids: Iterable[str]) -> None:
        """Remove a client and abort its requests without telling it. Idempotent."""
        self._sinks.pop(client_id, None)
        if self._scheduler is not None:
            self._end_requests(self._scheduler, request_ids)
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
            raise ServiceUnavailableError("the engine is going away", reason="DRAINING")
        form = request.sampling_params.structured_outputs
        if form is not None:
            check_grammar_size(form, self.config.structured_outputs.max_grammar_bytes)
        self._require_scheduler().add_request(request, self._clock())
        self._idle.clear()
        self._steps.wake()
        if form is not None:
            self._grammars.start(
                request.request_id,
                form,
                request.output_token_ids,
                partial(self._on_grammar, request),
                partial(self.fail_grammar, request.request_id),
                is_resumed=request.is_resumed,
            )
        return form is None

    def finish_requests(self, request_ids: Iterable[str], stop: Stop = ABORTED) -> None:
        """End requests and tell their clients; unknown ids are passed over."""
        if self._scheduler is not None:
            self._put_finished(self._end_requests(self._scheduler, request_ids, stop))
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
        return PauseState.UNPAUSED if self._scheduler is None else self._scheduler.pause_state

    def worker_pulses(self) -> Sequence[WorkerPulse]:
        """What the workers' heartbeats told last."""
        return self._executor.pulses()

    def make_stats(self) -> SchedulerStats | None:
        """The scheduler's figures; None before the first worker is ready."""
        return None if self._scheduler is None else self._scheduler.make_stats()

    def cached_hashes(self) -> list[bytes]:
        """The hashes that a follower of all KV events so far knows, in no order."""
        return [] if self._scheduler is None else self._scheduler.kv_cache.cached_hashes()

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Forget cached prefixes.

        Returns:
            False, and nothing is done, while requests hold blocks.
        """
        scheduler = self._require_scheduler()
        reset = scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)
        self._changed()
        return reset

    async def pause(self, mode: PauseMode) -> None:
        """Begin a pause, which lasts until `resume`, and wait until nothing moves any more.

        A caller that stops waiting leaves the pause on.
        """
        scheduler = self._require_scheduler()
        log.info("paused", mode=mode.value)
        scheduler.pause_state = mode.state
        if mode is PauseMode.ABORT:
            self._put_finished(self._end_requests(scheduler, None))
        self._changed()
        await self._quiet.wait()

    async def wait_settled(self) -> None:
        """Wait until, in a pause, no step is under way and the worker has heard of every end."""
        self._changed()
        await self._settled.wait()

    def resume(self) -> None:
        """End a pause; without one, nothing happens.

        Raises:
            PagewireError: The engine is starting, or sleeps.
        """
        self.sleep.check_awake()
        self._require_scheduler().pause_state = PauseState.UNPAUSED
        log.info("resumed")
        self._changed()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, let the others finish, then let go of all clients.

        What has not finished by then ends here without a word to its client but the end of its
        stream: a gateway takes it elsewhere.
        """
        self._drain_ends_s = self._clock() + timeout_s
        for sink in list(self._sinks.values()):
            sink.set_draining(timeout_s)
        if self._scheduler is not None and self._scheduler.has_requests:
            log.info("draining", num_requests=self._scheduler.num_requests, timeout_s=timeout_s)
            self._idle.clear()
            is_paused = self._scheduler.pause_state is not PauseState.UNPAUSED
            try:
                async with asyncio.timeout(timeout_s):
                    # A pause keeps requests from finishing here.
                    await (self._quiet.wait() if is_paused else self._idle.wait())
            except TimeoutError:
                log.warning("drain_timed_out", num_requests=self._scheduler.num_requests)
        for sink in list(self._sinks.values()):
            sink.end(ServiceUnavailableError("the engine is going away", reason="DRAINING"))
        if self._scheduler is not None:
            self._end_requests(self._scheduler, None)

    # The loop.

    async def run(self) -> None:
        """Claim a worker, run steps until it is lost, again and again, until cancelled.

        Raises:
            PagewireError: The first worker refused the configuration, or it does not fit.
        """
        while True:
            await self._claim_worker()
            try:
                await self._steps.run(self._require_scheduler())
            except WorkerLostError as error:
                self._on_worker_lost(str(error))

    async def _claim_worker(self) -> None:
        backoff_s, last_reason = FIRST_BACKOFF_S, ""
        if self._steps.num_failed_steps > 0:
            # The worker came back and was lost again before it did anything.
            num_doublings = min(self._steps.num_failed_steps, _MAX_DOUBLINGS)
            await self._sleep(min(FIRST_BACKOFF_S * 2**num_doublings, MAX_BACKOFF_S))
        while True:
            try:
                facts = await self._executor.initialize()
                await self._executor.allocate_kv_cache(self._settle(facts))
                await self.sleep.reapply()
                break
            except WorkerUnavailableError as error:
                reason = str(error)
            except PagewireError as error:
                if self.state is EngineState.STARTING:
                    raise
                # It was fine with this configuration before, so it may be again.
                reason = error.message
            if reason != last_reason:
                log.warning("no_worker", reason=reason)
                last_reason = reason
            await self._sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        self._set_state(EngineState.READY)

    def _settle(self, facts: WorkerFacts) -> KvCachePlan:
        """Size the engine by its first worker; hold every later one to that."""
        fingerprint = engine_fingerprint(facts)
        if self.info is None:
            plan = plan_kv_cache(self.config, facts)
            self.info = EngineInfo(facts, plan, fingerprint)
            self._scheduler = Scheduler(
                make_limits(self.config, facts, plan),
                self.kv_events,
                make_drafter(self.config.speculative),
                self.block_lives,
            )
            fingerprint_of_tokens = facts.model_info.tokenizer_fingerprint
            self._grammars.open(
                GrammarModel(facts.vocab_size, facts.eos_token_ids, fingerprint_of_tokens)
            )
            log.info(
                "kv_cache_sized",
                num_blocks=plan.num_blocks,
                block_size=plan.block_size,
                max_model_len=plan.max_model_len,
                engine_fingerprint=fingerprint,
            )
        elif fingerprint != self.info.fingerprint:
            raise WorkerUnavailableError(
                "its tokens would be others than those of the engine's first worker: give it the"
                " same checkpoint, and CPU kernels where that one has them"
            )
        return self.info.kv_cache

    # For the steps.

    @property
    def may_send(self) -> bool:
        return self.sleep.level == 0

    def put_outputs(self, outputs: Mapping[int, EngineCoreOutputs], timings: StepTimings) -> None:
        self._count(outputs)
        self.counters.steps += timings
        for client_id, client_outputs in outputs.items():
            sink = self._sinks.get(client_id)
            if sink is not None:
                sink.put_outputs(client_outputs, timings)

    def suspect(self, counts: Mapping[str, int]) -> None:
        for sink in list(self._sinks.values()):
            sink.put_suspicions(counts)
        if request_ids := final(counts):
            log.error("requests_suspected", request_ids=request_ids)
            ended = self._end_requests(
                self._require_scheduler(), request_ids, SUSPECTED, SUSPECTED_MESSAGE
            )
            self._put_finished(ended)
        self.note_idle()

    def fail_grammar(self, request_id: str, error: GrammarError) -> None:
        log.info("grammar_failed", request_id=request_id, reason=error.reason)
        stop = Stop(FinishReason.ERROR, error_reason=error.reason)
        scheduler = self._require_scheduler()
        self._put_finished(self._end_requests(scheduler, [request_id], stop, error.message))
        self._changed()

    def note_idle(self) -> None:
        scheduler = self._require_scheduler()
        num_in_flight = self._steps.num_in_flight
        if not scheduler.has_requests:
            self._idle.set()
        if num_in_flight or scheduler.has_work:
            self._settled.clear()
        else:
            self._settled.set()
        self._quiet.note(
            scheduler.pause_state,
            num_running=scheduler.num_running,
            num_steps_in_flight=num_in_flight,
        )

    # Moves.

    def _on_worker_lost(self, reason: str) -> None:
        scheduler = self._require_scheduler()
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
        for sink in list(self._sinks.values()):
            sink.set_recovering(state is EngineState.RECOVERING)
        self.on_state(state)

    def _on_grammar(self, request: EngineCoreRequest, grammar: Grammar) -> None:
        self._require_scheduler().set_grammar(request.request_id, grammar)
        sink = self._sinks.get(request.client_id)
        if sink is not None:
            sink.put_admitted(request.request_id)
        self._changed()

    def _end_requests(
        self,
        scheduler: Scheduler,
        request_ids: Iterable[str] | None,
        stop: Stop = ABORTED,
        message: str = "",
    ) -> dict[int, list[FinishedRequest]]:
        """End requests from outside, those whose grammar is still made included."""
        ended = scheduler.finish_requests(request_ids, stop, message)
        for finished in ended.values():
            for end in finished:
                self._grammars.cancel(end.request_id)
        return ended

    def _put_finished(self, ended: dict[int, list[FinishedRequest]]) -> None:
        for client_id, finished in ended.items():
            sink = self._sinks.get(client_id)
            if sink is not None:
                sink.put_finished(finished)

    def _changed(self) -> None:
        if self._scheduler is not None:
            self.note_idle()
        self._steps.wake()

    def _count(self, outputs: Mapping[int, EngineCoreOutputs]) -> None:
        counters = self.counters
        counters.num_steps += 1
        num_new = sum(sum(map(len, client.new_token_ids)) for client in outputs.values())
        counters.generation_tokens += num_new
        num_before = counters.prompt_tokens
        counters.prompt_tokens = self._require_scheduler().num_prefilled_tokens
        if num_new:
            counters.iteration_tokens.observe(counters.prompt_tokens - num_before + num_new)

    def _require_scheduler(self) -> Scheduler:
        if self._scheduler is None:
            raise ServiceUnavailableError("the engine is starting", reason="STARTING")
        return self._scheduler


def _make_kv_events(config: EngineConfig) -> KvEventLog | None:
    num_batches = config.observability.kv_events_buffer
    return KvEventLog(num_batches) if num_batches and config.cache.enable_prefix_caching else None
