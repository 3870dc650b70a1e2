"""Tools of the Responses API: functions, in a flatter form than that of chat completions.

Tools that OpenAI's servers run themselves (`web_search`, `file_search`, ...) are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from gateway.http.chat_tools import MAX_TOOLS, NAME, NAME_RULE
from gateway.http.fields import Fields, invalid, wrong_type
from gateway.message_request import MessageRequest, tools_of
from gateway.tools.tool import ToolChoice
from pagewire.kit.errors import InvalidRequestError

_MODES = {
    "none": ToolChoice.NONE,
    "auto": ToolChoice.AUTO,
    "required": ToolChoice.REQUIRED,
}


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The functions that the model may call, and whether it must."""

    message: MessageRequest
    template_json: str
    """The tools for the chat template; empty: none."""
    echoed: list[dict[str, Any]]
    """The tools as the response repeats them."""
    echoed_choice: str | dict[str, Any]


def read_tools(fields: Fields) -> ResponseTools:
    """Return the tools, and what `tool_choice` says of them.

    Raises:
        InvalidRequestError: Names the tool and its field.
    """
    tools = fields.array("tools") or []
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} are too many; at most {MAX_TOOLS}")
    functions, echoed = [], []
    for index, tool in enumerate(tools):
        here = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(here, tool, "an object")
        function, echo = _read_function(Fields(tool, here))
        functions.append(function)
        echoed.append(echo)
    names = [each["name"] for each in echoed]
    if len(set(names)) < len(names):
        raise invalid("tools", "have the same name twice")
    strict = {each["name"] for each in echoed if each["strict"]}
    choice, name = _read_choice(fields, names)
    shown = [] if choice is ToolChoice.NONE else functions
    callable_ = [each for each in shown if not name or each["function"]["name"] == name]
    return ResponseTools(
        message=MessageRequest(
            tools=tuple(replace(each, strict=each.name in strict) for each in tools_of(callable_)),
            tool_choice=choice if functions else ToolChoice.NONE,
            parallel_tool_calls=fields.boolean("parallel_tool_calls", default=True),
        ),
        # ASCII, so that a lone surrogate inside stays an escape.
        template_json=json.dumps(shown) if shown else "",
        echoed=echoed,
        echoed_choice={"type": "function", "name": name} if name else choice.name.lower(),
    )


def _read_function(tool: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = tool.required_text("type")
    if kind != "function":
        raise InvalidRequestError(
            f"{tool.path('type')}: {kind[:64]} is a tool that this server does not run; only"
            " function is supported",
            reason="UNSUPPORTED_PARAMETER",
            field=tool.path("type"),
        )
    name = tool.required_text("name")
    if not NAME.fullmatch(name):
        raise invalid(tool.path("name"), NAME_RULE)
    parameters = tool.object("parameters")
    schema = dict(parameters.items()) if parameters is not None else None
    description = tool.text("description")
    echo: dict[str, Any] = {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": tool.boolean("strict"),
    }
    # Templates show what they get, so they get no more than models were trained on.
    given = {"name": name, "description": description, "parameters": schema}
    function = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": function}, echo


def _read_choice(fields: Fields, names: list[str]) -> tuple[ToolChoice, str]:
    """Return the choice, and the name that it names."""
    value = fields.get("tool_choice")
    if value is None:
        return ToolChoice.AUTO, ""
    if isinstance(value, str):
        if value not in _MODES:
            raise invalid("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        if value == "required" and not names:
            raise invalid("tool_choice", "required needs tools to choose from")
        return _MODES[value], ""
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", value, "a string or an object")
    choice = Fields(value, "tool_choice")
    kind = choice.required_text("type")
    if kind != "function":
        raise InvalidRequestError(
            f"tool_choice.type: {kind[:64]} is not supported; only function is",
            reason="UNSUPPORTED_PARAMETER",
            field="tool_choice.type",
        )
    name = choice.required_text("name")
    if name not in names:
        raise invalid("tool_choice.name", "must be the name of one of tools")
    return ToolChoice.NAMED, name
