"""Parsers of tool calls by the names that `--tool-call-parser` takes.

A new format is a class that implements `ToolParser` and a row here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.tools.call_schema import CallTags
from gateway.tools.hermes import HERMES_TAGS, HermesParser
from gateway.tools.incremental import ToolParser
from gateway.tools.json_calls import JsonCallsParser
from gateway.tools.llama_json import LlamaJsonParser
from gateway.tools.mistral import MistralParser, new_call_id
from gateway.tools.pythonic import PythonicParser

AUTO = "auto"
"""The format that the model's chat template shows."""

_ID_BYTES = 12


def _new_id() -> str:
    return f"call_{secrets.token_hex(_ID_BYTES)}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How models of one kind write calls."""

    make_parser: Callable[[Sequence[str]], ToolParser]
    """From the tools' names to a parser of one output."""
    new_id: Callable[[], str] = _new_id
    """Makes the id of a call, as the model's template takes it back."""
    tags: CallTags | None = None
    """What stands around a call's arguments; None: nothing that can be told from other text."""


_HERMES = ToolFormat(lambda tools: HermesParser(), tags=HERMES_TAGS)
_LLAMA_JSON = ToolFormat(LlamaJsonParser)
_PYTHONIC = ToolFormat(PythonicParser)

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "json": ToolFormat(JsonCallsParser),
    "llama3_json": _LLAMA_JSON,
    "llama4_json": _LLAMA_JSON,
    "llama4_pythonic": _PYTHONIC,
    "mistral": ToolFormat(lambda tools: MistralParser(), new_call_id),
    "pythonic": _PYTHONIC,
}


def tool_format(name: str, shown_by_template: str) -> ToolFormat:
    """Return the format of that name.

    Args:
        name: One of `TOOL_FORMATS`, or `AUTO`.
        shown_by_template: The name that the tokenizer service found in the template; "": none,
            which is taken for JSON.
    """
    if name == AUTO:
        return TOOL_FORMATS.get(shown_by_template, TOOL_FORMATS["json"])
    return TOOL_FORMATS[name]
