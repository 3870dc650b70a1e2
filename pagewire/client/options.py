"""The keyword arguments of requests, and what they mean together; no wire in here.

Only what is given is sent, so that the model's own defaults fill the rest. Values are checked by
the same rules as in the gateway, before anything is sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, get_type_hints

from pagewire.client.types import Tool
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs


class SamplingOptions(TypedDict, total=False):
    """Fields of `pagewire.SamplingParams`; those that are left out have the model's defaults."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int
    logprob_token_ids: Sequence[int]
    prompt_logprobs: int
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    structured_outputs: StructuredOutputs
    thinking_token_budget: int


class RequestOptions(SamplingOptions, total=False):
    """What every generation takes."""

    sampling_params: SamplingParams
    """In place of single sampling options: all of its fields are meant as they are."""
    model: str
    """A served model's name; left out: the default model."""
    n: int
    """Number of outputs; 1 if left out."""
    return_token_ids: bool
    """Also return token ids."""
    timeout: float
    """Seconds until the request is ended; left out: the client's."""
    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""
    priority: int
    """Lower is sooner; only with priority scheduling."""
    request_id: str
    """Your name for the request, in answers and logs."""
    truncate_prompt_tokens: int
    """Keep only this many tokens of the prompt, its last ones; -1: as many as fit."""


class GenerateOptions(RequestOptions, total=False):
    """What `generate` takes."""

    add_special_tokens: bool
    """Add the tokens that the model wants at the start of a text; True if left out."""


class TemplateOptions(TypedDict, total=False):
    """How a conversation becomes a prompt."""

    tools: Sequence[Tool]
    """What the model may call."""
    chat_template_kwargs: Mapping[str, Any]
    """Extra variables of the chat template."""
    add_generation_prompt: bool
    """End the prompt with the opening of the assistant's turn; True if left out."""
    continue_final_message: bool
    """Leave the last message open: the output continues it."""


class ChatOptions(RequestOptions, TemplateOptions, total=False):
    """What `chat` takes."""

    tool_choice: str
    """`none`, `auto`, `required`, or the name of the function to call."""
    parallel_tool_calls: bool
    """Whether the output may hold more than one call; True if left out."""


class TokenizeOptions(TemplateOptions, total=False):
    """What `tokenize` and `count_tokens` take."""

    model: str
    """A served model's name; left out: the default model."""
    timeout: float
    """Seconds until the call is given up; left out: the client's."""
    add_special_tokens: bool
    """Of a text: add the tokens that the model wants at the start; True if left out."""


_TUPLES = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "bad_words")
_SAMPLING = frozenset(SamplingOptions.__annotations__)


def given_options(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the options that have a value; None is the same as leaving the name out.

    Args:
        options: Keyword arguments.
        known: The `TypedDict` that they are.

    Raises:
        TypeError: An unknown name.
    """
    names = get_type_hints(known)
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"unknown option {name!r}{hint}")
    return {name: value for name, value in options.items() if value is not None}


def sampling_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `SamplingParams` fields that the options set, checked.

    Args:
        options: From `given_options`.

    Raises:
        TypeError: Both forms at once.
        InvalidRequestError: A value is out of its bounds; `field` names it.
    """
    single = {name: value for name, value in options.items() if name in _SAMPLING}
    params = options.get("sampling_params")
    if params is not None:
        if single:
            raise TypeError(f"give sampling_params or {sorted(single)[0]}, not both")
        return {f.name: getattr(params, f.name) for f in fields(params)}
    values = {name: _normal(name, value) for name, value in single.items()}
    try:
        SamplingParams(**values)
    except TypeError as exc:
        raise InvalidRequestError(
            f"a sampling option has a wrong type: {exc}", reason="INVALID_PARAMETER"
        ) from exc
    return values


def _normal(name: str, value: Any) -> Any:
    """Return the value in the form that `SamplingParams` has."""
    if name == "stop":
        return (value,) if isinstance(value, str) else tuple(value)
    if name == "logit_bias":
        return tuple(value.items())
    return tuple(value) if name in _TUPLES else value
