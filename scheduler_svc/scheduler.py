"""Continuous batching: which tokens of which requests are computed in the next step.

There is no prefill and no decode phase: a request has tokens and computed tokens, and every step
lets the second catch up with the first within the token budget. The scheduler owns the live
requests, the running list and the waiting queue. It knows no clock (time is an argument), no wire
and no worker; `engine_core` calls `add_request`, `finish_requests`, `schedule` and
`update_from_output` from one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler_svc.block_lives import BlockLives
from scheduler_svc.block_pool import KvEventSink
from scheduler_svc.drafter import Drafter
from scheduler_svc.grammar import Grammar
from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.new_tokens import append_tokens
from scheduler_svc.output import (
    EngineCoreOutputs,
    FinishedRequest,
    ModelRunnerOutput,
    RowError,
    ScheduledRequest,
    SchedulerOutput,
    SchedulerStats,
)
from scheduler_svc.pause import PauseState
from scheduler_svc.request import EngineCoreRequest, Request
from scheduler_svc.speculation import Speculation
from scheduler_svc.step_plan import StepPlan, new_request_data
from scheduler_svc.stop import FinishReason, Stop

ABORTED = Stop(FinishReason.ABORT)
FAILED = Stop(FinishReason.ERROR)
_NO_TOKEN = RowError(FAILED.error_reason, "the worker drew no token")


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
        self._step = 0
        self._num_watermark_blocks = int(limits.watermark * limits.num_blocks)
        # No request has more tokens than the context, so that stands for no threshold.
        self._long_prefill_threshold = limits.long_prefill_token_threshold or limits.max_model_len

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
        paused = self.pause_state
        budget = 0 if paused is PauseState.PAUSED_ALL else self.limits.max_num_batched_tokens
        plan = StepPlan(budget)
        self.kv_cache.begin_step(self._step + 1, now_s)
        self._schedule_running(plan)
        if paused is PauseState.UNPAUSED and not plan.preempted_req_ids:
            self._schedule_waiting(plan, now_s)
        self.kv_cache.flush_events()
        return self._take_output(plan, draws=self._advance(plan))

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what the worker sampled in a step; in the order in which steps were planned.

        Tokens of requests that ended meanwhile are ignored, those of preempted ones are kept: they
        come back with them.

        Returns:
            What is new, by client.
        """
        step, outputs = output.step, dict[int, EngineCoreOutputs]()
        drafts, errors = output.drafts, result.errors
        self._report_moves(outputs, output)
        any_finished, has_logprobs = False, bool(result.logprobs or result.prompt_logprobs)
        for row, (request, draws, token_ids) in enumerate(
            zip(output.requests, output.draws, result.sampled_token_ids, strict=True)
        ):
            if step <= request.dropped_through_step:
                continue
            stop = None
            if draws:
                request.num_output_placeholders -= 1
            if token_ids:
                if drafts and request.request_id in drafts:
                    num_sampled = len(token_ids)
                    self._speculation.settle_row(request, drafts[request.request_id], num_sampled)
                is_first = has_logprobs and request.num_output_tokens == 0
                token_ids, stop = append_tokens(request, token_ids)
                if token_ids:
                    client = _outputs_for(outputs, request, step)
                    if has_logprobs:
                        client.add_logprobs(len(token_ids), result, row, is_first=is_first)
                    client.add_row(request.request_id, token_ids)
            if stop is not None or row in errors or (draws and not token_ids):
                any_finished = True
                # Without a token nothing would ever schedule it again.
                finished = self._finish_row(request, stop, errors.get(row, _NO_TOKEN), step)
                _outputs_for(outputs, request, step).finished.append(finished)
        self._live.note_prefilled()
        if any_finished:
            self._live.drop_finished()
        self._live.suspects.clear_passed(output.requests)
        return outputs

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

    # The passes of schedule().

    def _schedule_running(self, plan: StepPlan) -> None:
        # By index: a preemption shortens the list, before or behind the cursor's request.
        running, index = self._live.running, 0
        pipelined, max_rows = self.limits.num_stages > 1, self._max_running_rows
        allocate_slots, threshold = self.kv_cache.allocate_slots, self._long_prefill_threshold
        while index < len(running) and plan.token_budget > 0 and len(plan.requests) < max_rows:
            request = running[index]
            index += 1
            num_new = request.num_pending_tokens
            if num_new < 1 or (pipelined and request.num_output_placeholders > 0):
                continue
            if num_new > 1:
                num_new = min(num_new, plan.token_budget, threshold)
            if num_new == 1 and request.drafts is not None:
                num_behind = len(running) - index
                if self._speculation.plan_row(request, plan, num_behind):
                    continue
            block_ids = allocate_slots(request, num_new)
            if block_ids is None:
                block_ids = self._preempt_until_it_fits(request, num_new, plan)
                if block_ids is None:
                    return
                index = running.index(request) + 1
            plan.add_cached(request, num_new, block_ids)

    def _schedule_waiting(self, plan: StepPlan, now_s: float) -> None:
        # The head of the queue is never skipped for a smaller request.
        live = self._live
        while (
            live.waiting and plan.token_budget > 0 and len(live.running) < self.limits.max_num_seqs
        ):
            request = live.waiting.peek()
            if request.awaits_grammar:
                live.waiting.defer(request)
                continue
            if request.num_output_placeholders > 0:
                return  # a preempted one: its tokens under way come first
            if live.suspects and not live.suspects.may_join(request, live.running):
                return
            hit = self.kv_cache.get_computed_blocks(request)
            num_new = min(request.num_pending_tokens - hit.num_tokens, self._long_prefill_threshold)
            if num_new > plan.token_budget and not self.limits.enable_chunked_prefill:
                return
            num_new = min(num_new, plan.token_budget)
            block_ids = self.kv_cache.admit(
                request,
                hit,
                num_new,
                num_reserved_tokens=request.num_tokens if self.limits.reserve_full_isl else 0,
                num_spare_blocks=self._num_watermark_blocks if live.running else 0,
            )
            if block_ids is None:
                return
            live.start(request, hit, now_s)
            plan.add_new(request, num_new, new_request_data(request, block_ids))

    def _take_output(self, plan: StepPlan, draws: Sequence[bool]) -> SchedulerOutput:
        self._step += 1
        finished_req_ids, preempted_req_ids = self._live.take_untold()
        output = SchedulerOutput(
            step=self._step,
            requests=plan.requests,
            num_scheduled_tokens=plan.num_scheduled_tokens,
            draws=draws,
            total_num_scheduled_tokens=sum(plan.num_scheduled_tokens),
            scheduled_new_reqs=plan.new_reqs,
            scheduled_cached_reqs=plan.cached_requests(),
            finished_req_ids=finished_req_ids,
            preempted_req_ids=preempted_req_ids,
            drafts=plan.drafts,
            masked_rows=self._masked_rows(plan, draws) if self._live.num_grammars else (),
        )
        return output

    def _advance(self, plan: StepPlan) -> list[bool]:
        rows = zip(plan.requests, plan.num_scheduled_tokens, strict=True)
        return [request.advance(num_new) for request, num_new in rows]

    def _masked_rows(self, plan: StepPlan, draws: Sequence[bool]) -> list[int]:
        rows = zip(plan.requests, draws, strict=True)
        return [row for row, (request, d) in enumerate(rows) if d and request.grammar is not None]

    # Moves of one request.

    @property
    def _max_running_rows(self) -> int:
        """Running requests that one step may have, so that every pipeline stage has a step."""
        return -(-len(self._live.running) // self.limits.num_stages)

    def _preempt_until_it_fits(
        self, request: Request, num_new: int, plan: StepPlan
    ) -> Sequence[int] | None:
        """Make room for a running request at the cost of others.

        Returns:
            The new block ids; None if the request itself had to go.
        """
        block_ids = None
        while block_ids is None:
            victim = self._live.waiting.pick_victim(self._live.running)
            if plan.remove(victim):
                # What this step was to write for it stays unwritten.
                self.kv_cache.uncache_since(victim, self._step + 1)
            self._live.preempt(victim)
            plan.preempted_req_ids.append(victim.request_id)
            if victim is request:
                return None
            block_ids = self.kv_cache.allocate_slots(request, num_new)
        return block_ids

    def _drop_tokens_under_way(self, request: Request) -> None:
        request.num_output_placeholders = 0
        # Of a request that has ended they are dropped for good.
        request.dropped_through_step = max(request.dropped_through_step, self._step)

    def _finish_row(
        self, request: Request, stop: Stop | None, error: RowError, step: int
    ) -> FinishedRequest:
        """End a request of a step: by its tokens, or else by the error."""
        if stop is not None:
            return self._live.finish(request, stop, "")
        self.kv_cache.uncache_since(request, step)
        stop = Stop(FinishReason.ERROR, error_reason=error.reason)
        return self._live.finish(request, stop, error.message)

    def _report_moves(self, outputs: dict[int, EngineCoreOutputs], output: SchedulerOutput) -> None:
        """Tell clients what became of requests besides their tokens, for who follows them."""
        step = output.step
        for request in self._live.take_newly_scheduled():
            client = _outputs_for(outputs, request, step)
            client.scheduled.append(ScheduledRequest.of(request))
        for request, num_tokens in output.prefills() if output.has_prefill else ():
            if not request.ignores_outputs_of(step):
                client = _outputs_for(outputs, request, step)
                client.prefilled.append((request.request_id, num_tokens))
        for request_id in output.preempted_req_ids:
            if (preempted := self._live.by_id.get(request_id)) is not None:
                _outputs_for(outputs, preempted, step).preempted.append(request_id)


def _outputs_for(
    outputs: dict[int, EngineCoreOutputs], request: Request, step: int
) -> EngineCoreOutputs:
    client = outputs.get(request.client_id)
    if client is None:
        client = outputs[request.client_id] = EngineCoreOutputs(step)
    return client
