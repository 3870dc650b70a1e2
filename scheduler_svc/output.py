"""What a step says to the worker, and what the worker answers.

Plain data, kept in columns where there is a row for every request of a step. `worker_messages`
turns it into messages; nothing here knows the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pagewire.sampling_params import SamplingParams
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.request import Request


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
