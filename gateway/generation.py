"""What clients ask for and what they get, free of HTTP and protobuf.

Both front doors (`http` and `servicer`) build a `GenerationRequest`; `request_service` answers
with `Output`s. Nothing here knows how either travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from gateway.message_request import MessageRequest


class FinishReason(StrEnum):
    """Why an output ended; the values are OpenAI's and vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


class AbortReason(Enum):
    """Why the gateway ends a request before the engine does."""

    STOP_STRING = "stop_string"
    CLIENT_GONE = "client_gone"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation, as templates see it."""

    role: str
    content: str | None
    name: str = ""
    tool_calls_json: str = ""
    tool_call_id: str = ""
    reasoning_content: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation that the model's template turns into a prompt."""

    messages: tuple[ChatMessage, ...]
    template_arguments_json: str = ""
    """Extra variables of the template, `documents` among them: a JSON object; empty: none."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools_json: str = ""
    """Tools in OpenAI's form: a JSON array; empty: none."""
    chat_template: str = ""
    """In place of the model's own; the tokenizer refuses it unless it is told to trust clients."""
    add_special_tokens: bool = False
    """Add the tokens that the model wants at the start; most templates write them themselves."""


Prompt = str | tuple[int, ...] | ChatPrompt
"""Text, token ids, or a conversation."""


class TruncationSide(StrEnum):
    """Where a prompt that is too long loses tokens."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request of one client: every prompt gives n outputs."""

    model: str
    """A served model's name; empty: the default one."""
    prompts: tuple[Prompt, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """`SamplingParams` fields that the client gave; the model's defaults fill the rest."""
    n: int = 1
    default_max_tokens: int | None = None
    """Used when the client gave no max_tokens; None: the rest of the context."""
    timeout_s: float | None = None
    """The client's deadline; None: the gateway's."""
    cache_salt: str = ""
    priority: int = 0
    request_id: str = ""
    """The client's name for the request; empty: that of the call."""
    add_special_tokens: bool = True
    """Whether text prompts get the tokens that the model wants at the start."""
    truncate_prompt_tokens: int | None = None
    """Keep at most this many tokens of each prompt; -1: as many as fit with max_tokens."""
    truncation_side: TruncationSide = TruncationSide.LEFT
    echo: bool = False
    """Whether `Generation.prompt_texts` is wanted."""
    prompt_only: bool = False
    """What comes back is about the prompt alone: the one token that is drawn is thrown away."""
    message: MessageRequest | None = None
    """Of a chat: what is wanted of the assistant's message."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How one output ended. At most one of the three matches is set."""

    reason: FinishReason
    stop_token_id: int | None = None
    eos_token_id: int | None = None
    stop_string: str | None = None


class Logprob(NamedTuple):
    """One token that could stand at a place, and how likely it was there.

    A tuple, as a prompt may have a quarter of a million of them.
    """

    token_id: int
    token_bytes: bytes
    """What it spells; not always whole characters."""
    logprob: float
    """Natural logarithm of its probability; -inf where it could not be drawn at all."""
    rank: int
    """1 is the likeliest token of the vocabulary; of one that logprob_token_ids names, its place
    there."""


class TokenLogprobs(NamedTuple):
    """One place of a prompt or an output."""

    token: Logprob
    """The token that is there."""
    top: Sequence[Logprob]
    """The likeliest tokens, as many as were asked for, falling, or of an output those that
    logprob_token_ids names, in its order; they may include `token`."""


MAX_INLINE_WEIGHT = 4096
"""Outputs of more are written beside the event loop, which other clients need meanwhile."""

PromptLogprobs = list[TokenLogprobs | None]
"""One a prompt token; the first follows nothing and has None."""


@dataclass(slots=True)
class Output:
    """New text and token ids of one output; a consumer that lags gets them merged."""

    index: int
    """Prompt's place times n plus the place among the n."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    """Set on the last one of its index."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each of `token_ids` where `SamplingParams.num_logprobs` is set, else empty."""
    prompt_logprobs: PromptLogprobs | None = None
    """On the first one of its index, where `SamplingParams.prompt_logprobs` is set."""
    first_prompt_token: bytes = b""
    """With `prompt_logprobs`: what the prompt's first token spells, which has none."""

    @property
    def weight(self) -> int:
        """How much work it is to write: logprobs of all places, and text, 4 characters for one.

        Text is read for tool calls, which takes much longer where a model writes thousands of
        broken ones.
        """
        weight = len(self.text) // 4
        if not self.logprobs and self.prompt_logprobs is None:
            return weight
        places = [*self.logprobs, *(place for place in self.prompt_logprobs or () if place)]
        return weight + sum(1 + len(place.top) for place in places)

    def extend(self, later: Output) -> None:
        """Take in the output that follows this one."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.finished = later.finished
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
            self.first_prompt_token = later.first_prompt_token


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as of the first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None
    """Those of `completion_tokens` that are reasoning; None: not told apart."""
