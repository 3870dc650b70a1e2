"""A request as it comes in, and its state while the scheduler has it.

The tokens and the block hashes that follow from them live here; blocks do not (they are the KV
cache manager's). It knows no clock, no wire and no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pagewire.block_hash import hash_blocks
from pagewire.sampling_params import SamplingParams
from scheduler_svc.grammar import Grammar
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.request_drafts import RequestDrafts
from scheduler_svc.stop import FinishReason, Stop, StopRules, check_stop


class RequestStatus(Enum):
    """Where a request is in its life."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def is_finished(self) -> bool:
        return self in FINAL_STATUSES


FINISHED_STATUS = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH_CAPPED,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}

_NO_TOKEN_IDS: frozenset[int] = frozenset()

FINAL_STATUSES = frozenset(FINISHED_STATUS.values())


@dataclass(frozen=True, slots=True)
class EngineCoreRequest:
    """What a client asks for; immutable."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    arrival_time_s: float
    """Unix time when the request came to the system; a resumed one keeps its first arrival."""
    client_id: int = 0
    """Whom the outputs go to; the core only groups by it."""
    output_token_ids: Sequence[int] = ()
    """Tokens that a resumed request already delivered."""
    is_resumed: bool = False
    """It was admitted before, here or elsewhere: it passes queue limits, goes before new ones."""
    priority: int = 0
    cache_salt: str | None = None
    """Only requests with the same salt share cached blocks."""
    lora_digest: str | None = None
    """Content digest of the adapter whose KV this request reads and writes."""
    num_suspicions: int = 0
    """Workers that died with this request in their step."""
    traceparent: str = ""
    """W3C trace context, for the worker; empty: none."""


class _EveryStep:
    """What every step looks at of every running request.

    Slots lie side by side, so that of many requests few cache lines each are read.
    """

    __slots__ = (
        "_ending_token_ids",
        "_look_again_at",
        "all_token_ids",
        "client_id",
        "drafts",
        "dropped_through_step",
        "grammar",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_quiet_tokens",
        "request_id",
    )


class Request(_EveryStep):
    """A live request.

    Invariants: `all_token_ids` starts with the prompt; `num_computed_tokens` counts tokens whose KV
    is in the cache or in a step under way; `block_hashes` has one hash a full block of
    `all_token_ids` when prefix caching is on, else none.

    Steps overlap: the next one is planned before the tokens of one under way are known. Such a
    token is an output placeholder until its step has answered: it is computed as "what you drew
    last", so it needs a place in a block, but it has no hash and ends nothing.

    A step with drafts computes more tokens than are known, and its request is in no other step.
    With its answer it is known what they were worth: `num_computed_tokens` falls by the wrong ones.
    """

    __slots__ = (
        "_hash_block_size",
        "_max_computable_tokens",
        "added_time_s",
        "awaits_grammar",
        "block_hashes",
        "core_request",
        "deferral",
        "first_scheduled_time_s",
        "num_cached_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "status",
        "stop_rules",
    )

    def __init__(
        self, core_request: EngineCoreRequest, limits: SchedulerLimits, now_s: float
    ) -> None:
        self.core_request = core_request
        self.request_id = core_request.request_id
        self.client_id = core_request.client_id
        self.num_prompt_tokens = len(core_request.prompt_token_ids)
        self.all_token_ids = [*core_request.prompt_token_ids, *core_request.output_token_ids]
        self.stop_rules = _stop_rules(core_request, limits)
        self._max_computable_tokens = self.stop_rules.max_total_tokens - 1
        self._ending_token_ids = self.stop_rules.ending_token_ids
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        """Tokens that steps under way will draw. A preempted request keeps them."""
        self.dropped_through_step: float = 0
        """Tokens that steps up to this one draw don't count; infinite once the request ended."""
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in the cache at the first admission; 0 before it."""
        self.grammar: Grammar | None = None
        """Where the output stands in the form that it must have; None: it may be anything."""
        self.awaits_grammar = core_request.sampling_params.structured_outputs is not None
        """It has a form that is not compiled yet, so no step may have it."""
        self.deferral = 0
        """The waiting queue's: how many were deferred up to this one."""
        self.num_quiet_tokens = 0
        """While fewer tokens are computed than this, its block tables stay as they are, and its
        output is not full; 0: nothing is known. The KV cache manager says so."""
        self.drafts: RequestDrafts | None = None
        """Whence guesses come; None: it is not drafted for."""
        self.added_time_s = now_s
        self.first_scheduled_time_s: float | None = None
        self.block_hashes: list[bytes] = []
        self._hash_block_size = limits.block_size if limits.enable_prefix_caching else 0
        self._hash_full_blocks()

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens that are known."""
        return len(self.all_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that the next step can compute: those known and those under way.

        Nothing follows the last token of a full output, so no step computes it.
        """
        num_tokens = len(self.all_token_ids) + self.num_output_placeholders
        if num_tokens > self._max_computable_tokens:
            num_tokens = self._max_computable_tokens
        return num_tokens - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the output so far."""
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def sampling_params(self) -> SamplingParams:
        return self.core_request.sampling_params

    @property
    def queued_time_s(self) -> float:
        """From coming in to the first step; 0 before it."""
        if self.first_scheduled_time_s is None:
            return 0.0
        return self.first_scheduled_time_s - self.added_time_s

    @property
    def reads_prefix_cache(self) -> bool:
        """Prompt logprobs need every prompt position computed, so a hit would lose some."""
        return self.core_request.sampling_params.prompt_logprobs is None

    def ignores_outputs_of(self, step: int) -> bool:
        """Whether it ended meanwhile, or what the step drew was dropped."""
        return step <= self.dropped_through_step

    def note_quiet(self, num_tokens: int) -> None:
        """Note that its block tables stay as they are while fewer tokens are computed than this."""
        self.num_quiet_tokens = min(num_tokens, self._max_computable_tokens + 1)

    def append_output_token(self, token_id: int) -> None:
        self.all_token_ids.append(token_id)
        if len(self.all_token_ids) >= self._look_again_at:
            self._hash_full_blocks()

    def append_drawn_token(self, token_id: int) -> Stop | None:
        """Put the one token of a step without drafts in the place of its placeholder.

        Returns:
            The end of the output, if the token ends it; a grammar is not asked.
        """
        self.num_output_placeholders -= 1
        token_ids = self.all_token_ids
        token_ids.append(token_id)
        if len(token_ids) < self._look_again_at:
            if token_id not in self._ending_token_ids:
                return None
        else:
            self._hash_full_blocks()
        return check_stop(self.stop_rules, len(token_ids), token_id)

    def _hash_full_blocks(self) -> None:
        block_size = self._hash_block_size
        if not block_size:
            self._look_again_at = self.stop_rules.max_total_tokens
            return
        hashes = self.block_hashes
        start = len(hashes) * block_size
        parent = hashes[-1] if hashes else None
        salt, lora_digest = self.core_request.cache_salt, self.core_request.lora_digest
        hashes += hash_blocks(
            parent,
            self.all_token_ids[start:] if start else self.all_token_ids,
            block_size,
            () if lora_digest is None else (f"lora:{lora_digest}",),
            first_extra_keys=() if salt is None or start else (f"salt:{salt}",),
        )
        next_hash_at = (len(hashes) + 1) * block_size
        self._look_again_at = min(next_hash_at, self.stop_rules.max_total_tokens)


def max_total_tokens(core_request: EngineCoreRequest, max_model_len: int) -> int:
    """Prompt and output tokens that the request can reach at most."""
    max_tokens = core_request.sampling_params.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(max_model_len, len(core_request.prompt_token_ids) + max_tokens)


def _stop_rules(core_request: EngineCoreRequest, limits: SchedulerLimits) -> StopRules:
    params = core_request.sampling_params
    num_prompt_tokens = len(core_request.prompt_token_ids)
    max_total = max_total_tokens(core_request, limits.max_model_len)
    return StopRules(
        eos_token_ids=_NO_TOKEN_IDS if params.ignore_eos else limits.eos_token_ids,
        stop_token_ids=frozenset(params.stop_token_ids),
        # A context that is full ends the output in any case.
        min_tokens=min(params.min_tokens, max_total - num_prompt_tokens),
        num_prompt_tokens=num_prompt_tokens,
        max_total_tokens=max_total,
    )
