"""When an output ends, in vLLM V1's order.

Pure: it looks at counts and one token. Stop strings are not here: the gateway finds them in the
text and aborts the request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends one request's output."""

    eos_token_ids: frozenset[int]
    """Empty when the request ignores end-of-sequence tokens."""
    stop_token_ids: frozenset[int]
    min_tokens: int
    """No end before this many output tokens."""
    num_prompt_tokens: int
    max_total_tokens: int
    """Prompt and output tokens at which the output is full: by max_tokens or the context."""
    ending_token_ids: frozenset[int] = field(init=False)
    """Those that may end the output at all: most tokens are not among them."""

    def __post_init__(self) -> None:
        # One set for many requests, where they have no stop tokens of their own.
        ending = self.eos_token_ids | self.stop_token_ids if self.stop_token_ids else None
        object.__setattr__(self, "ending_token_ids", ending or self.eos_token_ids)


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of an output and what matched."""

    reason: FinishReason
    eos_token_id: int | None = None
    stop_token_id: int | None = None
    """vLLM's `stop_reason`: set for stop token ids, not for end-of-sequence tokens."""
    error_reason: str = "REQUEST_FAILED"
    """Machine-readable, if `reason` is ERROR."""
    message: str = ""
    """For the client, if `reason` is ERROR."""


LENGTH_STOP = Stop(FinishReason.LENGTH)


def check_stop(rules: StopRules, num_tokens: int, last_token_id: int) -> Stop | None:
    """Decide whether a request ends with its newest token.

    Args:
        rules: The request's rules.
        num_tokens: Prompt and output tokens, the newest included.
        last_token_id: The newest token.

    Returns:
        None to go on.
    """
    if num_tokens < rules.max_total_tokens and last_token_id not in rules.ending_token_ids:
        return None
    if num_tokens - rules.num_prompt_tokens < rules.min_tokens:
        return None
    if last_token_id in rules.eos_token_ids:
        return Stop(FinishReason.STOP, eos_token_id=last_token_id)
    if last_token_id in rules.stop_token_ids:
        return Stop(FinishReason.STOP, stop_token_id=last_token_id)
    if num_tokens >= rules.max_total_tokens:
        return LENGTH_STOP
    return None
