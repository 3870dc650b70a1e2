"""Structural tags of texts in which the model may call: what tool_choice auto can force.

Text stays the model's own, but a call is one of the tools given here, and keeps to the schema of a
strict one. A text that its parser could take for another call is no output of the form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.call_schema import arguments_schema
from gateway.tools.tool import Tool

Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallTags:
    """How a format writes a call: trigger, `before_name`, the name as JSON, and so on."""

    trigger: str
    before_name: str
    before_arguments: str
    behind_arguments: str

    def form(self, tools: Sequence[Tool]) -> Form:
        """Return the form of text with calls anywhere in it."""
        calls = [_call(tool, self) for tool in tools]
        return _tag({"type": "triggered_tags", "triggers": [self.trigger], "tags": calls})


@dataclass(frozen=True, slots=True)
class LeadingCalls:
    """Calls that begin with the output's first character, or behind a tag."""

    arguments: str
    """The key of a call's arguments."""
    array: bool
    """Whether they may stand in an array too."""
    text_start: str
    """An expression: how a text begins that is none of them."""
    tag: str = ""
    """Behind it they may follow a text; empty: they don't."""

    def form(self, tools: Sequence[Tool]) -> Form:
        """Return the form of an output that is calls, or text."""
        tags = CallTags("", '{"name": ', f', "{self.arguments}": ', "}")
        calls = [_call(tool, tags) for tool in tools]
        outputs = [_separated(calls, "; ")]
        if self.array:
            listed = _separated(calls, ", ")
            outputs.append({"type": "tag", "begin": "[", "content": listed, "end": "]"})
        start = {"type": "regex", "pattern": self.text_start}
        rest: Form = {"type": "any_text"}
        if self.tag:
            behind = {"begin": self.tag, "content": outputs[0], "end": ""}
            rest = {"type": "triggered_tags", "triggers": [self.tag], "tags": [behind]}
            # What follows the calls could be read as more of them.
            rest["stop_after_first"] = True
        outputs.append({"type": "sequence", "elements": [start, rest]})
        return _tag({"type": "or", "elements": outputs})


def _call(tool: Tool, tags: CallTags) -> Form:
    begin = f"{tags.trigger}{tags.before_name}{json.dumps(tool.name)}{tags.before_arguments}"
    schema = arguments_schema(tool) if tool.strict else {"type": "object"}
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": tags.behind_arguments}


def _separated(calls: list[Form], separator: str) -> Form:
    form: Form = {"type": "tags_with_separator", "tags": calls, "separator": separator}
    return form | {"at_least_one": True}


def _tag(form: Form) -> Form:
    return {"type": "structural_tag", "format": form}
