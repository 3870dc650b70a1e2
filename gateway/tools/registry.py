"""Parsers of tool calls by the names that `--tool-call-parser` takes.

A new format is a class that implements `ToolParser` and a row here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.tools.hermes import HERMES_TAGS, HermesParser
from gateway.tools.incremental import ToolParser
from gateway.tools.json_calls import JSON_CALLS, JsonCallsParser
from gateway.tools.llama_json import LLAMA_JSON_CALLS, LlamaJsonParser
from gateway.tools.mistral import MistralParser, new_call_id
from gateway.tools.pythonic import PythonicParser
from gateway.tools.strict_forms import Form
from gateway.tools.tool import Tool

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
    form: Callable[[Sequence[Tool]], Form] | None = None
    """From tools to the form of text whose calls are calls of them; None: there is none, as calls
    are no JSON, or begin with a special token, which no form has."""


_HERMES = ToolFormat(lambda tools: HermesParser(), form=HERMES_TAGS.form)
_LLAMA_JSON = ToolFormat(LlamaJsonParser, form=LLAMA_JSON_CALLS.form)
_PYTHONIC = ToolFormat(PythonicParser)

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "json": ToolFormat(JsonCallsParser, form=JSON_CALLS.form),
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
