"""Tools of a chat completion: what may be called, and whether it must be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
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
ALLOWED_TOOLS = "allowed_tools"


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether the model calls, and which tools it may."""

    mode: ToolChoice
    names: frozenset[str]
    only_these: bool = False
    """Whether others, which the body may have too, must not be called."""


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
    wanted = _read_choice(fields, functions)
    callable_ = [each for each in functions if each["function"]["name"] in wanted.names]
    # Models that were shown tools call them, whatever they were told.
    shown = callable_ if wanted.only_these else functions
    shown = [] if wanted.mode is ToolChoice.NONE else [_for_template(each) for each in shown]
    return ChatTools(
        MessageRequest(
            tools=tools_of(callable_),
            tool_choice=wanted.mode,
            only_these=wanted.only_these,
            parallel_tool_calls=parallel,
            include_reasoning=include_reasoning,
            request_type="chat_completions",
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


def _read_choice(fields: Fields, functions: Sequence[dict[str, Any]]) -> Choice:
    names = frozenset(each["function"]["name"] for each in functions)
    value = fields.get("tool_choice")
    if value is None:
        return Choice(ToolChoice.AUTO if functions else ToolChoice.NONE, names)
    if isinstance(value, str):
        choice = Choice(read_mode(value, "tool_choice"), names)
    else:
        choice = Choice(ToolChoice.NAMED, names)
    if choice.mode is ToolChoice.NONE:
        return Choice(choice.mode, frozenset())
    if not functions:
        raise invalid("tool_choice", "needs tools: give them, or leave it out")
    return choice if isinstance(value, str) else _read_choice_object(fields, names)


def read_mode(value: str, path: str) -> ToolChoice:
    """Return the choice that is named by one word.

    Raises:
        InvalidRequestError: There is no such choice.
    """
    if value not in _MODES:
        raise invalid(path, f"must be one of {', '.join(_MODES)}, or an object")
    return _MODES[value]


def read_allowed(
    allowed: Fields, names: frozenset[str], read_name: Callable[[Fields], str]
) -> Choice:
    """Return the choice of a mode and of some of the tools.

    Args:
        allowed: Has `mode` and `tools`.
        names: Of all tools.
        read_name: From one of `tools` to its name.

    Raises:
        InvalidRequestError: Names the field.
    """
    mode = _MODES.get(allowed.required_text("mode"))
    if mode not in (ToolChoice.AUTO, ToolChoice.REQUIRED):
        raise invalid(allowed.path("mode"), "must be auto or required")
    tools = allowed.array("tools")
    if not tools or len(tools) > MAX_TOOLS:
        raise invalid(allowed.path("tools"), f"must have 1 to {MAX_TOOLS} of tools")
    chosen = set()
    for index, tool in enumerate(tools):
        here = f"{allowed.path('tools')}[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(here, tool, "an object")
        name = read_name(Fields(tool, here))
        if name not in names:
            raise invalid(here, "must be one of tools")
        chosen.add(name)
    return Choice(mode, frozenset(chosen), only_these=True)


def _read_choice_object(fields: Fields, names: frozenset[str]) -> Choice:
    choice = fields.object("tool_choice")
    if choice is None:
        raise invalid("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
    if choice.get("type") == ALLOWED_TOOLS:
        allowed = choice.object(ALLOWED_TOOLS)
        if allowed is None:
            raise invalid(choice.path(ALLOWED_TOOLS), "is required: give mode and tools")
        return read_allowed(allowed, names, _read_name)
    name = _read_name(choice)
    if name not in names:
        raise invalid(f"{choice.path('function')}.name", "must be the name of one of tools")
    return Choice(ToolChoice.NAMED, frozenset((name,)))


def _read_name(named: Fields) -> str:
    """Return the name in `{"type": "function", "function": {"name": ...}}`."""
    _check_type(named)
    function = named.object("function")
    if function is None:
        raise invalid(named.path("function"), "is required: give the name of one of tools")
    return function.required_text("name")


def _check_type(value: Fields) -> None:
    kind = value.required_text("type")
    if kind != "function":
        path = value.path("type")
        raise InvalidRequestError(
            f"{path}: {kind[:64]} is not supported here; only function is",
            reason="UNSUPPORTED_PARAMETER",
            field=path,
        )
