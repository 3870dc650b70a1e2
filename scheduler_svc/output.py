"""What a step says to the worker, what the worker answers, and what clients get of it.

Plain data, kept in columns where there is a row for every request of a step. `convert` turns it
into messages; nothing here knows the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pagewire.kit.errors import (
    InternalError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from pagewire.sampling_params import SamplingParams
from scheduler_svc.grammar import (
    GRAMMAR_MISMATCH,
    GRAMMAR_TIMEOUT,
    GRAMMAR_TOO_COMPLEX,
    INVALID_GRAMMAR,
    NOT_SERVED,
)
from scheduler_svc.request import Request
from scheduler_svc.stop import FinishReason, Stop

# Reasons of a worker's rows that lie in the request's own parameters: trying again is no use.
_GRAMMAR_FAULTS = frozenset({INVALID_GRAMMAR, GRAMMAR_TOO_COMPLEX, GRAMMAR_MISMATCH, NOT_SERVED})
_REQUEST_FAULTS = frozenset({"EMPTY_MASK"}) | _GRAMMAR_FAULTS


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request that the worker does not know: new, or resumed after a preemption or a loss."""

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Tokens already drawn; draws and penalties go on from their number."""
    sampling_params: SamplingParams
    num_computed_tokens: int
    """Leading tokens whose KV the blocks already hold."""
    block_ids: Sequence[int]
    """The whole block table; with several KV cache groups one after another, all of one length, 0
    where a sliding window has no block any more."""
    lora_digest: str | None = None
    traceparent: str = ""
    """W3C trace context of the request; empty: none."""


@dataclass(frozen=True, slots=True)
class CachedRequestData:
    """Requests that the worker knows, in columns: only what changed."""

    request_ids: Sequence[str]
    new_block_ids: Sequence[Sequence[int]]
    """Appended to each block table; mostly empty. With several KV cache groups those of the first,
    then as many of each other."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step. Rows are first the cached requests, then the new ones."""

    step: int
    """Counts from 1."""
    requests: Sequence[Request]
    """The live requests by row, for `update_from_output`; they don't go to the worker."""
    num_scheduled_tokens: Sequence[int]
    """By row."""
    draws: Sequence[bool]
    """By row: the step computes the last token, so the worker draws the next."""
    total_num_scheduled_tokens: int
    scheduled_new_reqs: Sequence[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    finished_req_ids: Sequence[str]
    """Ended since the last step; the worker forgets them before it takes the new ones."""
    preempted_req_ids: Sequence[str]
    """Lost their blocks; the worker forgets them too, they come again as new."""
    drafts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By request id: guesses that the step verifies, the last of the tokens scheduled for it."""
    masked_rows: Sequence[int] = ()
    """Rows that draw under a grammar: the worker waits for their masks before it draws."""

    @property
    def is_empty(self) -> bool:
        """Whether the worker need not hear of this step at all."""
        return not (self.requests or self.finished_req_ids or self.preempted_req_ids)

    @property
    def has_prefill(self) -> bool:
        """Whether a row may have more to compute than what was drawn for it last, and drafts."""
        is_wide = self.total_num_scheduled_tokens > len(self.requests)
        return is_wide or bool(self.scheduled_new_reqs) or not all(self.draws)

    def prefills(self) -> Iterator[tuple[Request, int]]:
        """The requests that compute tokens which are known already, and how many."""
        first_new = len(self.requests) - len(self.scheduled_new_reqs)
        rows = zip(self.requests, self.num_scheduled_tokens, self.draws, strict=True)
        for row, (request, num_tokens, draws) in enumerate(rows):
            is_decode = draws and (num_tokens == 1 or request.request_id in self.drafts)
            if row >= first_new or not is_decode:
                yield request, num_tokens


@dataclass(slots=True)
class LogprobRows:
    """Log-probabilities of one request's new tokens: a row a token, candidates in one column."""

    logprobs: list[float]
    ranks: list[int]
    top_counts: list[int]
    """Candidates of each row."""
    top_token_ids: list[int]
    top_logprobs: list[float]

    def first(self, num_tokens: int) -> LogprobRows:
        """The rows of the first tokens."""
        if num_tokens >= len(self.logprobs):
            return self
        num_top = sum(self.top_counts[:num_tokens])
        return LogprobRows(
            logprobs=self.logprobs[:num_tokens],
            ranks=self.ranks[:num_tokens],
            top_counts=self.top_counts[:num_tokens],
            top_token_ids=self.top_token_ids[:num_top],
            top_logprobs=self.top_logprobs[:num_top],
        )

    def extend(self, later: LogprobRows) -> None:
        """Append the rows of later tokens."""
        self.logprobs += later.logprobs
        self.ranks += later.ranks
        self.top_counts += later.top_counts
        self.top_token_ids += later.top_token_ids
        self.top_logprobs += later.top_logprobs


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a request cannot go on."""

    reason: str
    """Machine-readable."""
    message: str
    """For the client."""


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """The worker's answer to one step."""

    step: int
    sampled_token_ids: Sequence[Sequence[int]]
    """By row of the step; empty for a prompt that is not computed to its end yet, more than one
    where drafts were right."""
    logprobs: Mapping[int, LogprobRows] = field(default_factory=dict)
    """By row, where asked for."""
    prompt_logprobs: Mapping[int, LogprobRows] = field(default_factory=dict)
    """By row, where asked for, beside the first token: of each prompt token but the first."""
    errors: Mapping[int, RowError] = field(default_factory=dict)
    """By row: requests that the model could not go on with, behind the tokens that they got."""
    forward_ns: int = 0
    sample_ns: int = 0
    idle_ns: int = 0
    """How long the worker had no step before this one."""
    prepare_ns: int = 0
    queue_ns: int = 0
    """How long the step waited in the worker behind others."""
    busy_ns: int = 0
    """How long the worker was busy with it; prepare, forward and sample are parts of it."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """The end of a request."""

    request_id: str
    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache at the first admission."""
    eos_token_id: int | None = None
    stop_token_id: int | None = None
    error_reason: str = "REQUEST_FAILED"
    """Machine-readable, if `reason` is ERROR."""
    message: str = ""
    """Why, if `reason` is ERROR."""

    @classmethod
    def of(cls, request: Request, stop: Stop, message: str = "") -> FinishedRequest:
        """Say that a request has ended, and how."""
        return cls(
            request_id=request.request_id,
            reason=stop.reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.num_cached_tokens,
            eos_token_id=stop.eos_token_id,
            stop_token_id=stop.stop_token_id,
            error_reason=stop.error_reason,
            message=message or stop.message,
        )

    def error(self) -> PagewireError:
        """Return what the client gets if `reason` is ERROR."""
        message = self.message or "the request failed"
        if self.error_reason in _REQUEST_FAULTS:
            field = "structured_outputs" if self.error_reason in _GRAMMAR_FAULTS else None
            return InvalidRequestError(message, reason=self.error_reason, field=field)
        if self.error_reason == GRAMMAR_TIMEOUT:
            return ServiceUnavailableError(message, reason=self.error_reason)
        return InternalError(message, reason=self.error_reason)


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request's first step: it left the queue."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    queued_time_s: float
    """How long it waited in the queue."""

    @classmethod
    def of(cls, request: Request) -> ScheduledRequest:
        """Say that a request runs for the first time."""
        return cls(
            request_id=request.request_id,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            queued_time_s=request.queued_time_s,
        )


@dataclass(slots=True)
class EngineCoreOutputs:
    """What one client gets of one step; filled row by row, then handed on."""

    step: int
    request_ids: list[str] = field(default_factory=list)
    """Of the rows that have new tokens."""
    new_token_ids: list[Sequence[int]] = field(default_factory=list)
    """By row."""
    logprobs: dict[int, LogprobRows] = field(default_factory=dict)
    """By row, where there are any."""
    prompt_logprobs: dict[int, LogprobRows] = field(default_factory=dict)
    """By row, once a request, with its first token: of each prompt token but the first."""
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    prefilled: list[tuple[str, int]] = field(default_factory=list)
    """Ids of requests whose known tokens the step computed, and how many: those of the prompt, or
    again those that a preemption or a loss took the KV of."""
    preempted: list[str] = field(default_factory=list)
    """Requests that lost their blocks when the step was planned."""
    finished: list[FinishedRequest] = field(default_factory=list)

    def add_row(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Append new tokens of a request, at least one."""
        self.request_ids.append(request_id)
        self.new_token_ids.append(token_ids)

    def add_logprobs(
        self, num_tokens: int, result: ModelRunnerOutput, row: int, *, is_first: bool
    ) -> None:
        """Take the logprobs that came with the row that is added next.

        Args:
            num_tokens: New tokens of it that count.
            result: What they came with.
            row: The request's row there.
            is_first: It had no token before: only then has it not got its prompt logprobs yet.
        """
        if row in result.logprobs:
            # The worker drew more where an end came among drafts that were right.
            self.logprobs[len(self.request_ids)] = result.logprobs[row].first(num_tokens)
        if is_first and row in result.prompt_logprobs:
            self.prompt_logprobs[len(self.request_ids)] = result.prompt_logprobs[row]


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Where the time of a step went, in nanoseconds; sums where steps were merged."""

    schedule_ns: int = 0
    execute_ns: int = 0
    """From sending the step to its answer; steps that overlap both count."""
    forward_ns: int = 0
    sample_ns: int = 0
    idle_ns: int = 0
    prepare_ns: int = 0
    queue_ns: int = 0
    busy_ns: int = 0
    answered_ns: int = 0
    """When the answer came, on this process's clock; of several steps the last one."""

    def __add__(self, other: StepTimings) -> StepTimings:
        return StepTimings(
            self.schedule_ns + other.schedule_ns,
            self.execute_ns + other.execute_ns,
            self.forward_ns + other.forward_ns,
            self.sample_ns + other.sample_ns,
            self.idle_ns + other.idle_ns,
            self.prepare_ns + other.prepare_ns,
            self.queue_ns + other.queue_ns,
            self.busy_ns + other.busy_ns,
            max(self.answered_ns, other.answered_ns),
        )


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's figures at one moment; counters grow forever."""

    num_requests_running: int
    num_requests_waiting: int
    num_requests_deferred: int
    """Of the waiting ones: those whose grammar is not ready."""
    num_tokens_waiting: int
    """Prompt tokens of waiting requests."""
    kv_cache_usage: float
    """Share of blocks that requests hold, 0 to 1."""
    num_free_blocks: int
    num_blocks: int
    """Null block included."""
    num_preemptions: int
    prefix_cache_queries: int
    """Tokens looked up at admissions."""
    prefix_cache_hits: int
    """Tokens found."""
    num_drafts: int
    """Verifications: one a request and step that had drafts."""
    num_draft_tokens: int
    num_accepted_tokens: int
    """Drafts that were right."""
    num_accepted_tokens_per_pos: Sequence[int]
    """The same by their place among the drafts of a step, as far as any was right."""
