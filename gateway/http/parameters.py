"""The request parameters that completions and chat share, from JSON to `GenerationRequest`.

Bounds of sampling parameters are `SamplingParams`'s own; what is refused by name is `known_names`'.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gateway.generation import GenerationRequest, Prompt, TruncationSide
from gateway.http.fields import Fields, check_integer, invalid
from gateway.http.known_names import refuse_unsupported
from gateway.http.structured_outputs import read_structured_outputs

_MAX_NAME_CHARS = 64
_MAX_REQUEST_ID_CHARS = 128
_RANDOM_SEED = -1

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_INTEGERS = ("top_k", "min_tokens", "thinking_token_budget")
_BOOLEANS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a streamed answer reports usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


def read_request(
    fields: Fields,
    prompts: tuple[Prompt, ...],
    max_tokens_names: tuple[str, ...],
    supported: Collection[str] = (),
) -> GenerationRequest:
    """Return what every endpoint that generates has in common.

    Args:
        fields: The body.
        prompts: What the endpoint made of its own fields.
        max_tokens_names: Names for max_tokens; the first one that is there wins.
        supported: Names that only this endpoint honours.

    Raises:
        InvalidRequestError: Names the field.
    """
    refuse_unsupported(fields, supported)
    return GenerationRequest(
        model=fields.text("model") or "",
        prompts=prompts,
        sampling=read_sampling(fields, max_tokens_names),
        n=read_n(fields),
        cache_salt=read_cache_salt(fields),
        priority=read_priority(fields),
        request_id=_read_request_id(fields),
        truncate_prompt_tokens=fields.integer("truncate_prompt_tokens"),
        truncation_side=_read_truncation_side(fields),
    )


def read_sampling(fields: Fields, max_tokens_names: tuple[str, ...]) -> dict[str, Any]:
    """Return the `SamplingParams` fields that the client gave; bounds are checked there.

    Args:
        fields: The body.
        max_tokens_names: Names for max_tokens; the first one that is there wins.
    """
    values: dict[str, Any] = {}
    for name in _NUMBERS:
        values[name] = fields.number(name)
    for name in _INTEGERS:
        values[name] = fields.integer(name)
    for name in _BOOLEANS:
        if fields.get(name) is not None:
            values[name] = fields.boolean(name)
    values["stop"] = fields.texts("stop")
    values["bad_words"] = fields.texts("bad_words")
    values["prompt_logprobs"] = fields.integer("prompt_logprobs")
    values["stop_token_ids"] = fields.integers("stop_token_ids")
    values["allowed_token_ids"] = fields.integers("allowed_token_ids")
    values["logit_bias"] = _read_logit_bias(fields)
    values["structured_outputs"] = read_structured_outputs(fields)
    seed = fields.integer("seed")
    values["seed"] = None if seed == _RANDOM_SEED else seed
    limits = [fields.integer(name) for name in max_tokens_names]
    values["max_tokens"] = next((limit for limit in limits if limit is not None), None)
    return {name: value for name, value in values.items() if value is not None}


def read_n(fields: Fields) -> int:
    """Return the number of outputs per prompt."""
    n = fields.integer("n")
    if n is not None and n < 1:
        raise invalid("n", "must be at least 1")
    return 1 if n is None else n


def read_stream(fields: Fields) -> StreamOptions | None:
    """Return how a stream reports usage; None: the answer is to come whole.

    Raises:
        InvalidRequestError: Options are given without `stream`, or what no stream has.
    """
    stream = fields.boolean("stream")
    options = fields.object("stream_options")
    if stream and fields.get("prompt_logprobs") is not None:
        raise invalid("prompt_logprobs", "is not allowed with stream=true")
    if not stream:
        if options is not None:
            raise invalid("stream_options", "is only allowed with stream=true")
        return None
    if options is None:
        return StreamOptions()
    return StreamOptions(
        include_usage=options.boolean("include_usage"),
        continuous_usage_stats=options.boolean("continuous_usage_stats"),
    )


def read_cache_salt(fields: Fields) -> str:
    """Return the salt of the prefix cache; "": none."""
    salt = fields.text("cache_salt")
    if salt == "":
        raise invalid("cache_salt", "must not be empty; leave it out instead")
    return salt or ""


def read_priority(fields: Fields) -> int:
    """Return the priority; the engine refuses others than 0 unless it schedules by priority."""
    priority = fields.integer("priority") or 0
    if not -(2**31) <= priority < 2**31:
        raise invalid("priority", "must fit in 32 bits")
    return priority


def read_top_logprobs(fields: Fields) -> int | None:
    """Return how many likeliest tokens chat reports beside each token; None: no logprobs.

    Raises:
        InvalidRequestError: `top_logprobs` is given without `logprobs`.
    """
    num_top = fields.integer("top_logprobs")
    if fields.boolean("logprobs"):
        return num_top or 0
    if num_top:
        raise invalid("top_logprobs", "needs logprobs=true")
    return None


def read_logprob_token_ids(fields: Fields) -> tuple[int, ...]:
    """Return the tokens that are reported in place of the likeliest ones; empty: none are named.

    Raises:
        InvalidRequestError: The list is empty.
    """
    token_ids = fields.integers("logprob_token_ids")
    if token_ids is None:
        return ()
    if not token_ids:
        raise invalid("logprob_token_ids", "must not be empty; leave it out instead")
    return token_ids


def _read_request_id(fields: Fields) -> str:
    request_id = fields.text("request_id") or ""
    if len(request_id) > _MAX_REQUEST_ID_CHARS or not request_id.isprintable():
        rule = f"must be printable and have at most {_MAX_REQUEST_ID_CHARS} characters"
        raise invalid("request_id", rule)
    return request_id


def _read_truncation_side(fields: Fields) -> TruncationSide:
    side = fields.text("truncation_side")
    if side is None:
        return TruncationSide.LEFT
    try:
        return TruncationSide(side)
    except ValueError:
        rule = f"must be one of {', '.join(TruncationSide)}"
        raise invalid("truncation_side", rule) from None


def _read_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...] | None:
    bias = fields.object("logit_bias")
    if bias is None:
        return None
    pairs = []
    for key in bias.items():
        path = f"logit_bias.{key[:_MAX_NAME_CHARS]}"
        if not key.isdecimal() or not key.isascii():
            raise invalid(path, "keys must be token ids")
        pairs.append((check_integer(int(key[:20]), path), bias.number(key) or 0.0))
    return tuple(pairs)
