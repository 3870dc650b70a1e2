"""Speculative decoding, the scheduler's part: which rows have drafts, and what came of them.

Drafts are guesses of the next tokens. One step computes them all and draws at each position with
that position's own counter; a draft counts as long as it equals what was drawn, so the output is
the same with drafts and without (design.md 6.2). The worker verifies; `request_drafts` guesses.

A request that is drafted for is in one step at a time: nobody can guess behind tokens that are not
known. All others overlap as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagewire.sampling_params import SamplingParams
from scheduler_svc.drafter import Drafter
from scheduler_svc.grammar import Grammar
from scheduler_svc.kv_cache_manager import KVCacheManager
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.request import Request, RequestStatus
from scheduler_svc.request_drafts import RequestDrafts
from scheduler_svc.step_plan import StepPlan

MAX_DRAFT_MASK_BYTES = 16 * 1024 * 1024
"""Bound of the masks that drafts add to a step: its frame must stay far below a message's limit."""


@dataclass(slots=True)
class SpeculationStats:
    """Grow forever."""

    num_drafts: int = 0
    """Verifications: one a request and step."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """By place among the drafts of a step; as long as the longest run that was right."""

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """Count one verification."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        by_place = self.num_accepted_tokens_per_pos
        by_place += [0] * (num_accepted - len(by_place))
        for place in range(num_accepted):
            by_place[place] += 1


def can_verify(params: SamplingParams) -> bool:
    """Whether a row of several positions gives all that the request asks for.

    Every setting that shapes a draw is seen at its own position. Prompt logprobs belong to a
    prefill that a verification has no room for.
    """
    return params.prompt_logprobs is None


class Speculation:
    """The drafts of one engine."""

    def __init__(
        self, drafter: Drafter | None, kv_cache: KVCacheManager, limits: SchedulerLimits
    ) -> None:
        self.stats = SpeculationStats()
        self._drafter = drafter
        self._kv_cache = kv_cache
        self._max_drafts_a_step = limits.max_num_batched_tokens // 2
        self._max_masked_drafts = MAX_DRAFT_MASK_BYTES // (limits.vocab_size // 8 + 1)

    def begin(self, params: SamplingParams, grammar: Grammar | None) -> RequestDrafts | None:
        """Return the drafts of a request; None if there will never be any."""
        if (self._drafter is None and grammar is None) or not can_verify(params):
            return None
        return RequestDrafts(self._drafter, grammar)

    def plan_row(self, request: Request, plan: StepPlan, num_behind: int) -> bool:
        """Plan the last token of a request together with drafts, if any are worth it.

        They never cost anybody a block: what does not fit without preempting is left out. While the
        request's next token is under way nothing can be drafted behind it; then this step passes
        over it, if guesses reach beyond that token.

        Args:
            request: The next one in the running list.
            plan: The step so far.
            num_behind: Running requests behind it in the list.

        Returns:
            Whether nothing else is to be planned for the request in this step.
        """
        drafts = request.drafts
        num_known = request.num_tokens + request.num_output_placeholders
        if request.num_computed_tokens != num_known - 1:
            return False  # a chunk of a prefill that happens to be one token
        max_tokens = self._max_drafts(request, plan, num_behind)
        if drafts is None or max_tokens < 1:
            return False
        num_under_way = request.num_output_placeholders
        token_ids = drafts.propose(
            request.all_token_ids, request.num_output_tokens, max_tokens, num_under_way
        )
        if num_under_way:
            return drafts.hold(len(token_ids) > num_under_way)
        if not token_ids:
            drafts.end_hold(request.num_output_tokens)
            return False
        block_ids = self._kv_cache.allocate_slots(request, 1 + len(token_ids))
        if block_ids is None:
            return False
        plan.add_cached(request, 1 + len(token_ids), block_ids, token_ids)
        return True

    def _max_drafts(self, request: Request, plan: StepPlan, num_behind: int) -> int:
        """Most drafts of a row: what others surely leave over.

        A token is kept for each request behind, half of the step for prefills.
        """
        num_left = request.stop_rules.max_total_tokens - request.num_tokens - 1
        num_spare = min(
            plan.token_budget - 1 - num_behind, self._max_drafts_a_step - plan.num_drafts
        )
        if request.grammar is not None:
            num_spare = min(num_spare, self._max_masked_drafts - plan.num_masked_drafts)
        return min(num_left, num_spare)

    def settle_row(self, request: Request, token_ids: Sequence[int], num_sampled: int) -> None:
        """Take in how many drafts were right; before the new tokens are appended.

        Args:
            request: Ran with drafts.
            token_ids: Those drafts.
            num_sampled: Tokens that the step gave it, at least 1.
        """
        num_accepted = num_sampled - 1
        if request.status is RequestStatus.RUNNING:
            # A preempted one has nothing computed any more.
            request.num_computed_tokens -= len(token_ids) - num_accepted
        if request.drafts is not None:
            num_outputs = request.num_output_tokens + num_sampled
            request.drafts.record(len(token_ids), num_accepted, num_outputs)
        self.stats.record(len(token_ids), num_accepted)
