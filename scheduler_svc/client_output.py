"""What clients get of a step: new tokens, and what became of their requests.

Plain data; `convert` turns it into messages. It knows the worker's answer as far as logprobs come
from there, and no client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagewire.kit.errors import (
    InternalError,
    InvalidRequestError,
    PagewireError,
    ServiceUnavailableError,
)
from scheduler_svc.grammar import (
    GRAMMAR_MISMATCH,
    GRAMMAR_TIMEOUT,
    GRAMMAR_TOO_COMPLEX,
    INVALID_GRAMMAR,
    NOT_SERVED,
)
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.output import ModelRunnerOutput
from scheduler_svc.request import Request
from scheduler_svc.stop import FinishReason, Stop

# Reasons of a worker's rows that lie in the request's own parameters: trying again is no use.
_GRAMMAR_FAULTS = frozenset({INVALID_GRAMMAR, GRAMMAR_TOO_COMPLEX, GRAMMAR_MISMATCH, NOT_SERVED})
_REQUEST_FAULTS = frozenset({"EMPTY_MASK"}) | _GRAMMAR_FAULTS


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
