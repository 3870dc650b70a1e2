"""Continuous batching: which tokens of which requests are computed in the next step.

There is no prefill and no decode phase: a request has tokens and computed tokens, and every step
lets the second catch up with the first within the token budget. The scheduler owns the live
requests, the running list and the waiting queue. It knows no clock (time is an argument), no wire
and no worker; `engine_core` calls `add_request`, `finish_requests`, `schedule` and
`update_from_output` from one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from pagewire.kit.errors import AlreadyExistsError
from scheduler_svc.admission import check_queue, check_request
from scheduler_svc.block_pool import KvEventSink
from scheduler_svc.kv_cache_manager import KVCacheManager, PrefixHit
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.output import (
    CachedRequestData,
    EngineCoreOutputs,
    FinishedRequest,
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
    SchedulerStats,
)
from scheduler_svc.pause import PauseState
from scheduler_svc.request import FINISHED_STATUS, EngineCoreRequest, Request, RequestStatus
from scheduler_svc.request_queue import create_request_queue
from scheduler_svc.step_plan import StepPlan, new_request_data
from scheduler_svc.stop import FinishReason, Stop, check_stop
from scheduler_svc.suspicion import Suspects

ABORTED = Stop(FinishReason.ABORT)
FAILED = Stop(FinishReason.ERROR)


class Scheduler:
    """The requests of one engine.

    Invariants between calls: every live request is in `_requests` and in exactly one of `_running`
    and `_waiting`; exactly the running ones have a block table.
    """

    def __init__(self, limits: SchedulerLimits, events: KvEventSink | None = None) -> None:
        self.limits = limits
        self.pause_state = PauseState.UNPAUSED
        self.kv_cache = KVCacheManager(
            limits.num_blocks,
            limits.block_size,
            enable_caching=limits.enable_prefix_caching,
            events=events,
        )
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._waiting = create_request_queue(limits.policy)
        self._finished_req_ids: list[str] = []
        self._preempted_req_ids: list[str] = []
        self._newly_scheduled: list[Request] = []
        self._suspects = Suspects()
        self._step = 0
        self._num_preemptions = 0
        self._num_watermark_blocks = int(limits.watermark * limits.num_blocks)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether the next step has anything to tell the worker, as far as a pause lets it."""
        return self.can_schedule or bool(self._finished_req_ids or self._preempted_req_ids)

    @property
    def can_schedule(self) -> bool:
        """Whether there is a request that may be scheduled."""
        if self.pause_state is PauseState.UNPAUSED:
            return bool(self._requests)
        return self.pause_state is PauseState.PAUSED_NEW and bool(self._running)

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

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
        if core_request.request_id in self._requests:
            raise AlreadyExistsError(
                f"request {core_request.request_id!r} is already live",
                reason="DUPLICATE_REQUEST_ID",
                field="request_id",
            )
        check_request(core_request, self.limits)
        check_queue(core_request, self._waiting, self.limits)
        request = Request(core_request, self.limits, now_s)
        self._requests[request.request_id] = request
        self._suspects.add(request, core_request.num_suspicions)
        self._waiting.add(request)
        return request

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
        ids = list(self._requests) if request_ids is None else request_ids
        ended: dict[int, list[FinishedRequest]] = {}
        for request_id in ids:
            request = self._requests.get(request_id)
            if request is not None:
                finished = self._finish(request, stop, message)
                ended.setdefault(request.client_id, []).append(finished)
        self._drop_finished_from_running()
        return ended

    def schedule(self, now_s: float) -> SchedulerOutput:
        """Plan one step: running requests first, in order, then waiting ones.

        `num_computed_tokens` advances here already and what the step draws becomes a placeholder,
        so that the next step can be planned before this one is executed.
        """
        paused = self.pause_state
        budget = 0 if paused is PauseState.PAUSED_ALL else self.limits.max_num_batched_tokens
        plan = StepPlan(budget)
        self.kv_cache.begin_step(self._step + 1)
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
        self._report_first_scheduled(outputs, step)
        any_finished = False
        for row, (request, draws, token_ids) in enumerate(
            zip(output.requests, output.draws, result.sampled_token_ids, strict=True)
        ):
            if step <= request.dropped_through_step:
                continue
            stop, message = None, ""
            if draws:
                request.num_output_placeholders -= 1
            if token_ids:
                token_ids, stop = _append_tokens(request, token_ids)
                client = _outputs_for(outputs, request, step)
                if row in result.logprobs:
                    client.logprobs[len(client.request_ids)] = result.logprobs[row]
                client.request_ids.append(request.request_id)
                client.new_token_ids.append(token_ids)
            elif row in result.errors:
                error = result.errors[row]
                stop, message = Stop(FinishReason.ERROR, error_reason=error.reason), error.message
                self.kv_cache.uncache_since(request, step)
            elif draws:
                # Nothing would ever schedule it again.
                stop, message = FAILED, "the worker drew no token"
            if stop is not None:
                any_finished = True
                finished = self._finish(request, stop, message)
                _outputs_for(outputs, request, step).finished.append(finished)
        if any_finished:
            self._drop_finished_from_running()
        self._suspects.clear_passed(output.requests)
        return outputs

    def suspect_step(self, output: SchedulerOutput) -> list[str]:
        """Suspect the requests of a step that the worker died of, or that failed as a whole.

        Returns:
            Ids of requests that were suspected too often and are to be ended.
        """
        return self._suspects.suspect(output.requests)

    def preempt_all(self) -> int:
        """Drop the KV of everything that runs and keep its tokens: the worker's cache is gone.

        Order is kept: what was first in the running list will be admitted first.

        Returns:
            How many requests were preempted.
        """
        num_preempted = len(self._running)
        while self._running:
            self._preempt(self._running[-1])
        return num_preempted

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
            for request in self._requests.values():
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
        victims = [request for request in self._running if request.request_id in doubtful]
        for request in reversed(victims):
            self._preempt(request)
        return len(victims)

    def forget_worker(self) -> None:
        """Forget what a lost worker had: its KV, steps under way, what it was still to be told.

        No output of a step planned before may come in any more.
        """
        self.preempt_all()
        for request in self._requests.values():
            request.num_output_placeholders = 0
        self.kv_cache.reset_prefix_cache()
        self._finished_req_ids.clear()
        self._preempted_req_ids.clear()

    def make_stats(self) -> SchedulerStats:
        cache = self.kv_cache
        return SchedulerStats(
            num_requests_running=len(self._running),
            num_requests_waiting=len(self._waiting),
            num_tokens_waiting=self._waiting.num_tokens,
            kv_cache_usage=cache.usage,
            num_free_blocks=cache.num_free_blocks,
            num_blocks=cache.num_blocks,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=cache.stats.num_queries,
            prefix_cache_hits=cache.stats.num_hits,
        )

    def check_integrity(self) -> None:
        """Verify the invariants of scheduler and cache; walks everything.

        Raises:
            RuntimeError: Names the first that does not hold.
        """
        self.kv_cache.check_integrity()
        waiting, running = list(self._waiting), self._running
        if len(waiting) != len(self._waiting):
            raise RuntimeError("the waiting queue's count is wrong")
        if self._waiting.num_tokens != sum(request.num_prompt_tokens for request in waiting):
            raise RuntimeError("the waiting queue's tokens are counted wrong")
        ids = sorted(request.request_id for request in [*waiting, *running])
        if ids != sorted(self._requests):
            raise RuntimeError("live requests are not those that wait or run")
        if any(request.status is not RequestStatus.RUNNING for request in running):
            raise RuntimeError("a request in the running list is not running")
        if self.kv_cache.num_tables != len(running):
            raise RuntimeError("block tables are not those of the running requests")

    # The passes of schedule().

    def _schedule_running(self, plan: StepPlan) -> None:
        # By index: a preemption shortens the list, before or behind the cursor's request.
        running, index = self._running, 0
        while index < len(running) and plan.token_budget > 0:
            request = running[index]
            num_new = min(self._num_pending_tokens(request), plan.token_budget)
            if num_new > 0:
                num_preempted = len(plan.preempted_req_ids)
                block_ids = self._allocate_or_preempt(request, num_new, plan)
                if block_ids is None:
                    return
                plan.add_cached(request, num_new, block_ids)
                if len(plan.preempted_req_ids) > num_preempted:
                    index = running.index(request)
            index += 1

    def _schedule_waiting(self, plan: StepPlan, now_s: float) -> None:
        # The head of the queue is never skipped for a smaller request.
        while (
            self._waiting
            and plan.token_budget > 0
            and len(self._running) < self.limits.max_num_seqs
        ):
            request = self._waiting.peek()
            if request.num_output_placeholders > 0:
                return  # a preempted one: its tokens under way come first
            if self._suspects and not self._suspects.may_join(request, self._running):
                return
            hit = self.kv_cache.get_computed_blocks(request)
            num_new = self._num_pending_tokens(request, hit.num_tokens)
            if num_new > plan.token_budget and not self.limits.enable_chunked_prefill:
                return
            num_new = min(num_new, plan.token_budget)
            block_ids = self.kv_cache.admit(
                request,
                hit,
                num_new,
                num_reserved_tokens=request.num_tokens if self.limits.reserve_full_isl else 0,
                num_spare_blocks=self._num_watermark_blocks if self._running else 0,
            )
            if block_ids is None:
                return
            self._start(request, hit, now_s)
            plan.add_new(request, num_new, new_request_data(request, block_ids))

    def _take_output(self, plan: StepPlan, draws: Sequence[bool]) -> SchedulerOutput:
        self._step += 1
        output = SchedulerOutput(
            step=self._step,
            requests=plan.requests,
            num_scheduled_tokens=plan.num_scheduled_tokens,
            draws=draws,
            total_num_scheduled_tokens=sum(plan.num_scheduled_tokens),
            scheduled_new_reqs=plan.new_reqs,
            scheduled_cached_reqs=CachedRequestData(plan.cached_req_ids, plan.new_block_ids),
            finished_req_ids=self._finished_req_ids,
            preempted_req_ids=self._preempted_req_ids,
        )
        self._finished_req_ids, self._preempted_req_ids = [], []
        return output

    def _advance(self, plan: StepPlan) -> list[bool]:
        rows = zip(plan.requests, plan.num_scheduled_tokens, strict=True)
        return [request.advance(num_new) for request, num_new in rows]

    # Moves of one request.

    def _num_pending_tokens(self, request: Request, num_hit_tokens: int = 0) -> int:
        num_new = request.num_computable_tokens - request.num_computed_tokens - num_hit_tokens
        threshold = self.limits.long_prefill_token_threshold
        return threshold if 0 < threshold < num_new else num_new

    def _allocate_or_preempt(
        self, request: Request, num_new: int, plan: StepPlan
    ) -> Sequence[int] | None:
        """Make room for a running request, at the cost of others if need be.

        Returns:
            The new block ids; None if the request itself had to go.
        """
        while True:
            block_ids = self.kv_cache.allocate_slots(request, num_new)
            if block_ids is not None:
                return block_ids
            victim = self._waiting.pick_victim(self._running)
            if plan.remove(victim):
                # What this step was to write for it stays unwritten.
                self.kv_cache.uncache_since(victim, self._step + 1)
            self._preempt(victim)
            plan.preempted_req_ids.append(victim.request_id)
            if victim is request:
                return None

    def _preempt(self, request: Request) -> None:
        self.kv_cache.free(request)
        if self._running[-1] is request:
            self._running.pop()
        else:
            self._running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._preempted_req_ids.append(request.request_id)
        self._waiting.prepend(request)

    def _start(self, request: Request, hit: PrefixHit, now_s: float) -> None:
        self._waiting.remove(request)
        self._running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = hit.num_tokens
        if request.first_scheduled_time_s is None:
            request.first_scheduled_time_s = now_s
            # A resumed request may hit blocks of its own output; usage counts the prompt alone.
            request.num_cached_tokens = min(hit.num_tokens, request.num_prompt_tokens)
            self._newly_scheduled.append(request)

    def _drop_tokens_under_way(self, request: Request) -> None:
        request.num_output_placeholders = 0
        # Of a request that has ended they are dropped for good.
        request.dropped_through_step = max(request.dropped_through_step, self._step)

    def _finish(self, request: Request, stop: Stop, message: str) -> FinishedRequest:
        if request.status is RequestStatus.RUNNING:
            self.kv_cache.free(request)
            self._finished_req_ids.append(request.request_id)
        else:
            self._waiting.remove(request)
        request.status = FINISHED_STATUS[stop.reason]
        request.dropped_through_step = inf
        del self._requests[request.request_id]
        self._suspects.forget(request)
        return FinishedRequest(
            request_id=request.request_id,
            reason=stop.reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.num_cached_tokens,
            eos_token_id=stop.eos_token_id,
            stop_token_id=stop.stop_token_id,
            error_reason=stop.error_reason,
            message=message,
        )

    def _drop_finished_from_running(self) -> None:
        self._running = [r for r in self._running if r.status is RequestStatus.RUNNING]

    def _report_first_scheduled(self, outputs: dict[int, EngineCoreOutputs], step: int) -> None:
        for request in self._newly_scheduled:
            if not request.status.is_finished:
                _outputs_for(outputs, request, step).scheduled.append(
                    ScheduledRequest(
                        request_id=request.request_id,
                        num_prompt_tokens=request.num_prompt_tokens,
                        num_cached_tokens=request.num_cached_tokens,
                        queued_time_s=request.queued_time_s,
                    )
                )
        self._newly_scheduled.clear()


def _append_tokens(request: Request, token_ids: Sequence[int]) -> tuple[Sequence[int], Stop | None]:
    """Append tokens one by one up to the first that ends the output; the rest is dropped."""
    for index, token_id in enumerate(token_ids):
        request.append_output_token(token_id)
        stop = check_stop(request.stop_rules, request.num_tokens, token_id)
        if stop is not None:
            return token_ids[: index + 1], stop
    return token_ids, None


def _outputs_for(
    outputs: dict[int, EngineCoreOutputs], request: Request, step: int
) -> EngineCoreOutputs:
    client = outputs.get(request.client_id)
    if client is None:
        client = outputs[request.client_id] = EngineCoreOutputs(step)
    return client
