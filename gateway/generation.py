"""What clients ask for and what they get, free of HTTP and protobuf.

Both front doors (`http` and `servicer`) build a `GenerationRequest`; `request_service` answers
with `Output`s. Nothing here knows how either travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any


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
    add_generation_prompt: bool = True
    continue_final_message: bool = False


Prompt = str | tuple[int, ...] | ChatPrompt
"""Text, token ids, or a conversation."""


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


@dataclass(frozen=True, slots=True)
class Finished:
    """How one output ended. At most one of the three matches is set."""

    reason: FinishReason
    stop_token_id: int | None = None
    eos_token_id: int | None = None
    stop_string: str | None = None


@dataclass(slots=True)
class Output:
    """New text and token ids of one output; a consumer that lags gets them merged."""

    index: int
    """Prompt's place times n plus the place among the n."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None
    """Set on the last one of its index."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as of the first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
