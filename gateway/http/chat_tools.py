"""Tools of a chat completion: what may be called, and whether it must be."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.http.fields import Fields, invalid, wrong_type
from gateway.message_request import MessageRequest, tools_of
from gateway.tools.tool import ToolChoice
from pagewire.kit.errors import InvalidRequestError

MAX_TOOLS = 128

# OpenAI's, and the dots and slashes of names that gateways of tools give.
NAME = re.compile(r"[\w./:-]{1,128}")
NAME_RULE = "must have 1 to 128 letters, digits, underscores, dashes, dots, colons or slashes"
_MODES = {
    "none": ToolChoice.NONE,
    "auto": ToolChoice.AUTO,
    "required": ToolChoice.REQUIRED,
}


@dataclass(frozen=True, slots=True)
class ChatTools:
    """What a body says of tools."""

    message: MessageRequest = field(default_factory=MessageRequest)
    template_json: str = ""
    """The tools for the chat template; empty: none."""


def read_tools(fields: Fields) -> ChatTools:
    """Return the tools, and what the message may do with them.

    Raises:
        InvalidRequestError: Names the field.
    """
    parallel = fields.boolean("parallel_tool_calls", default=True)
    include_reasoning = fields.boolean("include_reasoning", default=True)
    functions = _read_functions(fields)
    choice, name = _read_choice(fields, functions)
    if choice is ToolChoice.NAMED:
        callable_ = [each for each in functions if each["function"]["name"] == name]
    else:
        callable_ = functions
    # Models that were shown tools call them, whatever they were told.
    shown = [] if choice is ToolChoice.NONE else [_for_template(each) for each in functions]
    return ChatTools(
        MessageRequest(
            tools=() if choice is ToolChoice.NONE else tools_of(callable_),
            tool_choice=choice,
            parallel_tool_calls=parallel,
            include_reasoning=include_reasoning,
        ),
        # ASCII, so that a lone surrogate inside stays an escape.
        json.dumps(shown) if shown else "",
    )


def _read_functions(fields: Fields) -> list[dict[str, Any]]:
    tools = fields.array("tools")
    if tools is None:
        return []
    if not tools:
        raise invalid("tools", "must have at least one tool; leave it out instead")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} are too many; at most {MAX_TOOLS}")
    functions, names = [], set[str]()
    for index, tool in enumerate(tools):
        here = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(here, tool, "an object")
        function = _read_function(Fields(tool, here))
        name = function["function"]["name"]
        if name in names:
            raise invalid(f"{here}.function.name", f"{name} is there twice")
        names.add(name)
        functions.append(function)
    return functions


def _read_function(tool: Fields) -> dict[str, Any]:
    """Return a tool in OpenAI's form."""
    _check_type(tool)
    function = tool.object("function")
    if function is None:
        raise invalid(tool.path("function"), "is required: give name and parameters")
    name = function.required_text("name")
    if not NAME.fullmatch(name):
        raise invalid(function.path("name"), NAME_RULE)
    shown: dict[str, Any] = {"name": name}
    if (description := function.text("description")) is not None:
        shown["description"] = description
    parameters = function.object("parameters")
    if parameters is not None:
        shown["parameters"] = parameters.items()
    return {"type": "function", "function": shown | {"strict": function.boolean("strict")}}


def _for_template(function: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is no news to the model."""
    shown = {name: value for name, value in function["function"].items() if name != "strict"}
    return {"type": "function", "function": shown}


def _read_choice(fields: Fields, functions: Sequence[dict[str, Any]]) -> tuple[ToolChoice, str]:
    """Return the choice, and the name that it names."""
    value = fields.get("tool_choice")
    if value is None:
        return (ToolChoice.AUTO if functions else ToolChoice.NONE), ""
    if isinstance(value, str):
        if value not in _MODES:
            raise invalid("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        choice = _MODES[value]
    else:
        choice = ToolChoice.NAMED
    if not functions and choice is not ToolChoice.NONE:
        raise invalid("tool_choice", "needs tools: give them, or leave it out")
    return choice, _read_name(fields, functions) if choice is ToolChoice.NAMED else ""


def _read_name(fields: Fields, functions: Sequence[dict[str, Any]]) -> str:
    named = fields.object("tool_choice")
    if named is None:
        raise invalid("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
    _check_type(named)
    function = named.object("function")
    if function is None:
        raise invalid(named.path("function"), "is required: give the name of one of tools")
    name = function.required_text("name")
    if all(each["function"]["name"] != name for each in functions):
        raise invalid(function.path("name"), "must be the name of one of tools")
    return name


def _check_type(value: Fields) -> None:
    kind = value.required_text("type")
    if kind != "function":
        path = value.path("type")
        raise InvalidRequestError(
            f"{path}: {kind[:64]} is not supported; only function is",
            reason="UNSUPPORTED_PARAMETER",
            field=path,
        )
