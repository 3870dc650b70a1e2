"""What users give to `LLM.generate` and `LLM.chat`, as one list of prompts with parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from pagewire.client.requests import Conversation
from pagewire.client.types import ChatMessage
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams


class TextPrompt(TypedDict):
    """A text, as vLLM's dictionary."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, as vLLM's dictionary."""

    prompt_token_ids: Sequence[int]


PromptLike: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt


@dataclass(frozen=True, slots=True)
class OfflinePrompt:
    """One prompt of a call."""

    index: int
    """Its place in the call."""
    content: str | Sequence[int] | Conversation
    is_conversation: bool
    params: SamplingParams | None
    """None: the model's defaults."""

    @property
    def size(self) -> int:
        """About how many bytes its message has."""
        if isinstance(self.content, str):
            return len(self.content)
        if self.is_conversation:
            return sum(len(str(message)) for message in self.content)
        return 4 * len(self.content)


def read_prompts(
    prompts: PromptLike | Sequence[PromptLike],
    params: SamplingParams | Sequence[SamplingParams] | None,
) -> list[OfflinePrompt]:
    """Return the prompts of `LLM.generate`.

    Raises:
        InvalidRequestError: One is no prompt; it says which.
        ValueError: There are not as many parameters as prompts.
    """
    contents = [_content(each, i) for i, each in enumerate(_as_list(prompts))]
    rows = _params_of_each(params, len(contents))
    return [
        OfflinePrompt(i, content, False, row)
        for i, (content, row) in enumerate(zip(contents, rows, strict=True))
    ]


def read_conversations(
    conversations: Conversation | Sequence[Conversation],
    params: SamplingParams | Sequence[SamplingParams] | None,
) -> list[OfflinePrompt]:
    """Return the prompts of `LLM.chat`.

    Raises:
        ValueError: There are not as many parameters as conversations.
    """
    rows: list[Any] = [conversations] if _is_conversation(conversations) else list(conversations)
    params_rows = _params_of_each(params, len(rows))
    return [
        OfflinePrompt(i, _whole(row), True, row_params)
        for i, (row, row_params) in enumerate(zip(rows, params_rows, strict=True))
    ]


def _as_list(prompts: Any) -> list[Any]:
    is_one = isinstance(prompts, str | Mapping) or (len(prompts) > 0 and _is_id(prompts[0]))
    return [prompts] if is_one else list(prompts)


def _content(prompt: Any, index: int) -> str | Sequence[int]:
    if isinstance(prompt, Mapping):
        given = prompt.get("prompt_token_ids", prompt.get("prompt"))
    else:
        given = prompt
    if isinstance(given, str):
        return given
    if given is not None and not isinstance(given, bytes) and all(map(_is_id, given)):
        return tuple(given)
    field = f"prompts[{index}]"
    raise InvalidRequestError(
        f"{field}: must be a text, token ids, or a dictionary with prompt or prompt_token_ids",
        reason="INVALID_PROMPT",
        field=field,
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, int) or hasattr(value, "__index__")


def _is_conversation(value: Any) -> bool:
    """Whether it is one conversation: a text, or messages."""
    return isinstance(value, str) or (
        len(value) > 0 and isinstance(value[0], Mapping | ChatMessage)
    )


def _whole(conversation: Conversation) -> Conversation:
    if isinstance(conversation, str):
        return (ChatMessage("user", conversation),)
    return conversation


def _params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(
            f"sampling_params: {len(params)} of them for {num_prompts} prompts; give one for all or"
            " one for each"
        )
    return params
