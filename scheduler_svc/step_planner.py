"""The passes of `schedule()`: which tokens of which requests the next step computes.

Running requests first, in order, then waiting ones. It makes the moves that a plan needs (a request
starts, gives way) and counts steps; what comes back of a step is `step_results`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.output import SchedulerOutput
from scheduler_svc.pause import PauseState
from scheduler_svc.request import Request
from scheduler_svc.speculation import Speculation
from scheduler_svc.step_plan import StepPlan, new_request_data
from scheduler_svc.step_rows import advance_all, end_of_quiet_run


class StepPlanner:
    """Plans the steps of one engine, one after another."""

    def __init__(
        self,
        limits: SchedulerLimits,
        live: LiveRequests,
        kv_cache: KVCacheManager,
        speculation: Speculation,
    ) -> None:
        self.step = 0
        """The last step that was planned."""
        self._limits = limits
        self._live = live
        self._kv_cache = kv_cache
        self._speculation = speculation
        self._num_watermark_blocks = int(limits.watermark * limits.num_blocks)
        # No request has more tokens than the context, so that stands for no threshold.
        self._long_prefill_threshold = limits.long_prefill_token_threshold or limits.max_model_len

    def plan(self, pause_state: PauseState, now_s: float) -> SchedulerOutput:
        """Plan one step.

        `num_computed_tokens` advances here already and what the step draws becomes a placeholder,
        so that the next step can be planned before this one is executed.
        """
        is_paused = pause_state is PauseState.PAUSED_ALL
        plan = StepPlan(0 if is_paused else self._limits.max_num_batched_tokens)
        self._kv_cache.begin_step(self.step + 1, now_s)
        self._schedule_running(plan)
        if pause_state is PauseState.UNPAUSED and not plan.preempted_req_ids:
            self._schedule_waiting(plan, now_s)
        self._kv_cache.flush_events()
        return self._take_output(plan, advance_all(plan.requests, plan.num_scheduled_tokens))

    def _schedule_running(self, plan: StepPlan) -> None:
        # By index: a preemption shortens the list, before or behind the cursor's request.
        running, index = self._live.running, 0
        pipelined, max_rows = self._limits.num_stages > 1, self._max_running_rows
        allocate_slots, threshold = self._kv_cache.allocate_slots, self._long_prefill_threshold
        while index < len(running) and plan.token_budget > 0 and len(plan.requests) < max_rows:
            if not pipelined:
                end = end_of_quiet_run(running, index, index + plan.token_budget)
                plan.add_quiet(running[index:end])
                index = end
                if index == len(running) or plan.token_budget == 0:
                    return
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
            live.waiting and plan.token_budget > 0 and len(live.running) < self._limits.max_num_seqs
        ):
            request = live.waiting.peek()
            if request.awaits_grammar:
                live.waiting.defer(request)
                continue
            if request.num_output_placeholders > 0:
                return  # a preempted one: its tokens under way come first
            if live.suspects and not live.suspects.may_join(request, live.running):
                return
            hit = self._kv_cache.get_computed_blocks(request)
            num_new = min(request.num_pending_tokens - hit.num_tokens, self._long_prefill_threshold)
            if num_new > plan.token_budget and not self._limits.enable_chunked_prefill:
                return
            num_new = min(num_new, plan.token_budget)
            block_ids = self._kv_cache.admit(
                request,
                hit,
                num_new,
                num_reserved_tokens=request.num_tokens if self._limits.reserve_full_isl else 0,
                num_spare_blocks=self._num_watermark_blocks if live.running else 0,
            )
            if block_ids is None:
                return
            live.start(request, hit, now_s)
            plan.add_new(request, num_new, new_request_data(request, block_ids))

    def _take_output(self, plan: StepPlan, draws: Sequence[bool]) -> SchedulerOutput:
        self.step += 1
        finished_req_ids, preempted_req_ids = self._live.take_untold()
        output = SchedulerOutput(
            step=self.step,
            requests=plan.requests,
            num_scheduled_tokens=plan.num_scheduled_tokens,
            draws=draws,
            total_num_scheduled_tokens=sum(plan.num_scheduled_tokens),
            scheduled_new_reqs=plan.new_reqs,
            scheduled_cached_reqs=plan.cached_requests(),
            finished_req_ids=finished_req_ids,
            preempted_req_ids=preempted_req_ids,
            drafts=plan.drafts,
            masked_rows=_masked_rows(plan, draws) if self._live.num_grammars else (),
        )
        return output

    @property
    def _max_running_rows(self) -> int:
        """Running requests that one step may have, so that every pipeline stage has a step."""
        return -(-len(self._live.running) // self._limits.num_stages)

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
                self._kv_cache.uncache_since(victim, self.step + 1)
            self._live.preempt(victim)
            plan.preempted_req_ids.append(victim.request_id)
            if victim is request:
                return None
            block_ids = self._kv_cache.allocate_slots(request, num_new)
        return block_ids


def _masked_rows(plan: StepPlan, draws: Sequence[bool]) -> list[int]:
    rows = zip(plan.requests, draws, strict=True)
    return [row for row, (request, d) in enumerate(rows) if d and request.grammar is not None]
