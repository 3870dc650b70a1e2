"""Parameters by name: those that are refused, those that change nothing, and unknown ones.

A parameter that would change the output and that we cannot honour is refused by name, unless it
has the value that changes nothing; hints that change no output are accepted; unknown names are
ignored and logged once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway.http.fields import Fields
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.logs import get_logger

log = get_logger("gateway.http")

_MAX_LOGGED_NAMES = 256
_MAX_NAME_CHARS = 64

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
    "include_reasoning",
    "spaces_between_special_tokens",
    "stream_interval",
    "verbosity",
    "session_id",
)

# Names that would change the output, with the values (beside null) that do not.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "prediction": (),
    "best_of": (1,),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "tools": ([],),  # only chat has them
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
    "prompt_embeds": (),
    "logprob_token_ids": ([],),
    "chat_template": (),
    "documents": ([],),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "logits_processors": ([],),
}


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
