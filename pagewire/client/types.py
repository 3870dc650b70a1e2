"""What requests hold and what answers are: frozen dataclasses, named as vLLM and OpenAI name them.

They know nothing of the wire; `pagewire.client.messages` reads and writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error", "repetition", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token that could stand at a place, and how likely it was there."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability; -inf where it could not be drawn."""
    rank: int
    """1 is the likeliest token of the vocabulary; of one that logprob_token_ids names, its place
    there."""
    token_bytes: bytes
    """What it spells; not always whole characters."""

    @property
    def decoded_token(self) -> str:
        """The token as text; what is no whole character becomes U+FFFD."""
        return self.token_bytes.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One place of a prompt or an output."""

    token: Logprob
    """The token that is there."""
    top: tuple[Logprob, ...] = ()
    """The likeliest tokens, as many as were asked for, falling, or of an output those that
    logprob_token_ids names, in its order; they may include `token`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model."""

    id: str
    name: str
    arguments: str
    """A JSON object, as text; the model wrote it, so it may not parse."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new in one call of a function."""

    index: int
    """Which call of the output."""
    id: str = ""
    """On the call's first delta."""
    name: str = ""
    """On the call's first delta."""
    arguments: str = ""
    """The next piece."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """A JSON schema of the arguments; empty: none."""
    strict: bool = False
    """Whether every call has to keep to the schema, also where the model chooses whether to call;
    refused where its format of calls allows no such thing."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """system, user, assistant, tool, ... as the model's template knows them."""
    content: str = ""
    name: str = ""
    """Of the author, for templates that use it."""
    tool_calls: Sequence[ToolCall] = ()
    """What the assistant called in this turn."""
    tool_call_id: str = ""
    """Of a tool's message: the call that it answers."""
    reasoning: str = ""
    """What the assistant thought in this turn, for templates that show it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in one output of a stream. Never cumulative."""

    index: int = 0
    """Which of the n outputs."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """Only with return_token_ids."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """Only with logprobs: one a token of this delta."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Only with prompt_logprobs, once: one a prompt token, from the second on."""
    reasoning: str = ""
    """Only of a chat: what comes before the answer."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """Only of a chat."""
    finish_reason: FinishReason | None = None
    """Set on the last delta of its index, which may have no text."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; None for an end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One whole output."""

    index: int
    """Which of the n outputs."""
    text: str
    token_ids: tuple[int, ...] = ()
    """Empty unless they were asked for (return_token_ids, logprobs; `LLM` always does)."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or string that ended it; None for an end-of-sequence token."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One a token, where they were asked for."""
    reasoning: str = ""
    """Only of a chat: what came before the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only of a chat."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All that one request gave."""

    request_id: str
    outputs: tuple[CompletionOutput, ...]
    """n of them, by index."""
    usage: Usage
    model: str = ""
    """The name of the model that answered."""
    prompt: str | None = None
    """The prompt's text, where it was one; None for token ids and conversations."""
    prompt_token_ids: tuple[int, ...] | None = None
    """Of `LLM`, always; else those that were given."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """One a prompt token, from the second on, where they were asked for."""

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text

    @property
    def num_cached_tokens(self) -> int:
        return self.usage.cached_tokens


@dataclass(frozen=True, slots=True)
class Model:
    """A served model."""

    id: str
    """The name to use in requests."""
    max_model_len: int
    """The longest sequence, prompt and output together, in tokens."""
    created: int
    """Unix seconds at which the gateway came to know it."""
