"""The request parameters that completions and chat share, from JSON to `SamplingParams` fields.

A parameter that would change the output and that we cannot honour is refused by name, unless it
has the value that changes nothing; hints that change no output are accepted; unknown names are
ignored and logged once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.http.fields import Fields, check_integer, invalid
from gateway.http.structured_outputs import read_structured_outputs
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

_MAX_LOGGED_NAMES = 256
_MAX_NAME_CHARS = 64
_RANDOM_SEED = -1

# Names that OpenAI or vLLM know, that change no output here.
HINTS = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "prediction",
    "request_id",
    "include_reasoning",
    "spaces_between_special_tokens",
)

# Names that would change the output, with the values (beside null) that do not.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "bad_words": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),  # without tools, both mean none
    "functions": ([],),
    "function_call": ("none", "auto"),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "chat_template": (),
    "documents": ([],),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "return_tokens_as_token_ids": (False,),
    "stream_interval": (1,),
}

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_INTEGERS = ("top_k", "min_tokens")
_BOOLEANS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a streamed answer reports usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


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


def read_stream_options(fields: Fields, stream: bool) -> StreamOptions:
    """Return how a stream reports usage.

    Raises:
        InvalidRequestError: They are given without `stream`.
    """
    options = fields.object("stream_options")
    if options is None:
        return StreamOptions()
    if not stream:
        raise invalid("stream_options", "is only allowed with stream=true")
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


def refuse_unsupported(fields: Fields, supported: Collection[str] = ()) -> None:
    """Refuse what we cannot honour.

    Args:
        fields: The body.
        supported: Names of `UNSUPPORTED` that this endpoint honours and reads itself.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    for name, harmless in UNSUPPORTED.items():
        if name in supported:
            continue
        value = fields.get(name)
        if value is None or any(value == each and type(value) is type(each) for each in harmless):
            continue
        raise InvalidRequestError(
            f"{name}: not supported yet; leave it out", reason="UNSUPPORTED_PARAMETER", field=name
        )
    for name in HINTS:
        fields.get(name)


class UnknownNames:
    """Logs each unknown parameter name once, and a bounded number of them."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, fields: Fields) -> None:
        for name in fields.unknown():
            short = name[:_MAX_NAME_CHARS]
            if short not in self._logged and len(self._logged) < _MAX_LOGGED_NAMES:
                self._logged.add(short)
                log.warning("unknown_parameter_ignored", name=ascii(short))


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
