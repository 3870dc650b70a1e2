"""Continuous batching: which tokens of which requests are computed in the next step.

There is no prefill and no decode phase: a request has tokens and computed tokens, and every step
lets the second catch up with the first within the token budget. The scheduler owns the live
requests, the running list and the waiting queue. It knows no clock (time is an argument), no wire
and no worker; `engine_core` calls `add_request`, `finish_requests`, `schedule` and
`update_from_output` from one task. What a step is made of is `step_planner`'s, what comes of its
answer `step_results`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler_svc.block_lives import BlockLives
from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest
from scheduler_svc.drafter import Drafter
from scheduler_svc.grammar import Grammar
from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.kv_event_sink import KvEventSink
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.output import ModelRunnerOutput, SchedulerOutput
from scheduler_svc.pause import PauseState
from scheduler_svc.request import EngineCoreRequest, Request
from scheduler_svc.speculation import Speculation
from scheduler_svc.step_figures import SchedulerStats
from scheduler_svc.step_planner import StepPlanner
from scheduler_svc.step_results import StepResults
from scheduler_svc.stop import FinishReason, Stop

ABORTED = Stop(FinishReason.ABORT)


class Scheduler:
    """The next step of one engine's requests, and what becomes of the last ones."""

    def __init__(
        self,
        limits: SchedulerLimits,
        events: KvEventSink | None = None,
        drafter: Drafter | None = None,
        lives: BlockLives | None = None,
    ) -> None:
        self.limits = limits
        self.pause_state = PauseState.UNPAUSED
        self.kv_cache = KVCacheManager(
            limits.num_blocks,
            limits.block_size,
            groups=limits.kv_cache_groups,
            max_step_tokens=limits.max_step_tokens,
            enable_caching=limits.enable_prefix_caching,
            events=events,
            lives=lives,
        )
        self._live = LiveRequests(limits, self.kv_cache)
        self._speculation = Speculation(drafter, self.kv_cache, limits)
        self._planner = StepPlanner(limits, self._live, self.kv_cache, self._speculation)
        self._results = StepResults(self._live, self.kv_cache, self._speculation)

    @property
    def has_requests(self) -> bool:
        return bool(self._live.by_id)

    @property
    def has_work(self) -> bool:
        """Whether the next step has anything to tell the worker, as far as a pause lets it."""
        return self.can_schedule or self._live.has_untold

    @property
    def can_schedule(self) -> bool:
        """Whether there is a request that may be scheduled."""
        if self.pause_state is PauseState.UNPAUSED:
            return bool(self._live.running or self._live.waiting)
        return self.pause_state is PauseState.PAUSED_NEW and bool(self._live.running)

    @property
    def num_requests(self) -> int:
        return len(self._live.by_id)

    @property
    def num_running(self) -> int:
        return len(self._live.running)

    @property
    def num_prefilled_tokens(self) -> int:
        """Prompt tokens of requests that have got their first token; grows forever."""
        return self._live.num_prefilled_tokens

    @property
    def num_waiting(self) -> int:
        return self._live.waiting.num_waiting

    def add_request(self, core_request: EngineCoreRequest, now_s: float) -> Request:
        """Check a request and put it in the queue.

        Args:
            core_request: The request.
            now_s: Time on the clock that `schedule` is given too.

        Raises:
            InvalidRequestError: It can never be served here.
            AlreadyExistsError: A live request has its id.
            QueueFullError: Too much is waiting.
        """
        request = self._live.add(core_request, now_s)
        request.drafts = self._speculation.begin(request.sampling_params, None)
        return request

    def set_grammar(self, request_id: str, grammar: Grammar) -> None:
        """Let a request run that waited for its grammar; nothing if it has ended meanwhile.

        Args:
            request_id: Its sampling parameters say what its output must be.
            grammar: Has taken in the output that the request came with.
        """
        request = self._live.by_id.get(request_id)
        if request is not None and request.awaits_grammar:
            request.drafts = self._speculation.begin(request.sampling_params, grammar)
            self._live.set_grammar(request, grammar)

    def rows_to_mask(self, output: SchedulerOutput) -> dict[int, tuple[Grammar, Sequence[int]]]:
        """The grammars that a step draws under, and its drafts, by row; without rows that ended.

        Args:
            output: The oldest step without an answer, so that all tokens before it are known.
        """
        rows: dict[int, tuple[Grammar, Sequence[int]]] = {}
        for row in output.masked_rows:
            request = output.requests[row]
            if request.grammar is not None and not request.ignores_outputs_of(output.step):
                rows[row] = request.grammar, output.drafts.get(request.request_id, ())
        return rows

    def finish_requests(
        self, request_ids: Iterable[str] | None, stop: Stop = ABORTED, message: str = ""
    ) -> dict[int, list[FinishedRequest]]:
        """End requests from outside; their blocks are free at once.

        Args:
            request_ids: None for all; unknown ids (ended meanwhile) are passed over.
            stop: What to call it.
            message: For the client, if it is an error.

        Returns:
            What ended, by client.
        """
        ids = list(self._live.by_id) if request_ids is None else request_ids
        ended: dict[int, list[FinishedRequest]] = {}
        for request_id in ids:
            request = self._live.by_id.get(request_id)
            if request is not None:
                finished = self._live.finish(request, stop, message)
                ended.setdefault(request.client_id, []).append(finished)
        self._live.drop_finished()
        return ended

    def schedule(self, now_s: float) -> SchedulerOutput:
        """Plan one step: running requests first, in order, then waiting ones.

        `num_computed_tokens` advances here already and what the step draws becomes a placeholder,
        so that the next step can be planned before this one is executed.
        """
        return self._planner.plan(self.pause_state, now_s)

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what the worker sampled in a step; in the order in which steps were planned.

        Tokens of requests that ended meanwhile are ignored, those of preempted ones are kept: they
        come back with them.

        Returns:
            What is new, by client.
        """
        return self._results.take(output, result)

    def suspect_steps(self, outputs: Iterable[SchedulerOutput]) -> dict[str, int]:
        """Suspect the requests of steps that the worker died of, or that failed as a whole.

        Args:
            outputs: Those that ran at the same time; a request of several is suspected once.

        Returns:
            How often each of the requests has been suspected by now.
        """
        requests = {request.request_id: request for o in outputs for request in o.requests}
        return self._live.suspects.suspect(requests.values())

    def preempt_all(self) -> int:
        """Drop the KV of everything that runs and keep its tokens: the worker's cache is gone.

        Order is kept: what was first in the running list will be admitted first.

        Returns:
            How many requests were preempted.
        """
        return self._live.preempt_all()

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Forget what is cached.

        Args:
            reset_running_requests: Preempt all that runs first. Their tokens under way are dropped,
                and drawn again: what they were computed from may be what the reset is to forget.

        Returns:
            False, and nothing is done, while requests hold blocks.
        """
        if reset_running_requests:
            self.preempt_all()
            for request in self._live.by_id.values():
                self._drop_tokens_under_way(request)
        return self.kv_cache.reset_prefix_cache()

    def take_back_steps(self, outputs: Sequence[SchedulerOutput]) -> int:
        """Undo steps that failed on a worker that lives: what they wrote is in doubt, no more.

        Such a worker has forgotten every request that a failed step named, ended ones included.

        Args:
            outputs: The first step that failed and all that were planned after it, in order. They
                must not come to `update_from_output` any more.

        Returns:
            How many requests were preempted.
        """
        doubtful = self.kv_cache.uncache_all_since(outputs[0].step)
        for output in outputs:
            for request in output.requests:
                doubtful.add(request.request_id)
                self._drop_tokens_under_way(request)
        victims = [request for request in self._live.running if request.request_id in doubtful]
        for request in reversed(victims):
            self._live.preempt(request)
        return len(victims)

    def forget_worker(self) -> None:
        """Forget what a lost worker had: its KV, steps under way, what it was still to be told.

        No output of a step planned before may come in any more.
        """
        self.preempt_all()
        for request in self._live.by_id.values():
            request.num_output_placeholders = 0
        self.kv_cache.reset_prefix_cache()
        self._live.take_untold()

    def make_stats(self) -> SchedulerStats:
        cache, speculation = self.kv_cache, self._speculation.stats
        return SchedulerStats(
            num_requests_running=len(self._live.running),
            num_requests_waiting=self._live.waiting.num_waiting,
            num_requests_deferred=len(self._live.waiting.deferred),
            num_tokens_waiting=self._live.waiting.num_tokens,
            kv_cache_usage=cache.usage,
            num_free_blocks=cache.num_free_blocks,
            num_blocks=cache.num_blocks,
            num_preemptions=self._live.num_preemptions,
            prefix_cache_queries=cache.stats.num_queries,
            prefix_cache_hits=cache.stats.num_hits,
            num_drafts=speculation.num_drafts,
            num_draft_tokens=speculation.num_draft_tokens,
            num_accepted_tokens=speculation.num_accepted_tokens,
            num_accepted_tokens_per_pos=tuple(speculation.num_accepted_tokens_per_pos),
        )

    def check_integrity(self) -> None:
        """Verify the invariants of scheduler and cache; walks everything.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        self.kv_cache.check_integrity()
        self._live.check_integrity()

    def _drop_tokens_under_way(self, request: Request) -> None:
        request.num_output_placeholders = 0
        # Of a request that has ended they are dropped for good.
        request.dropped_through_step = max(request.dropped_through_step, self._planner.step)
