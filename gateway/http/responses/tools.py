"""Tools of the Responses API: functions, in a flatter form than that of chat completions.

Tools that OpenAI's servers run themselves (`web_search`, `file_search`, ...) are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from gateway.http.chat_tools import (
    ALLOWED_TOOLS,
    MAX_TOOLS,
    NAME,
    NAME_RULE,
    Choice,
    read_allowed,
    read_mode,
)
from gateway.http.fields import Fields, invalid, wrong_type
from gateway.message_request import MessageRequest, tools_of
from gateway.tools.tool import ToolChoice
from pagewire.kit.errors import InvalidRequestError


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
    choice, echoed_choice = _read_choice(fields, frozenset(names))
    callable_ = [each for each in functions if each["function"]["name"] in choice.names]
    shown = callable_ if choice.only_these else functions
    shown = [] if choice.mode is ToolChoice.NONE else shown
    return ResponseTools(
        message=MessageRequest(
            tools=tuple(replace(each, strict=each.name in strict) for each in tools_of(callable_)),
            tool_choice=choice.mode if functions else ToolChoice.NONE,
            only_these=choice.only_these,
            parallel_tool_calls=fields.boolean("parallel_tool_calls", default=True),
            streamed=fields.boolean("stream"),
            request_type="responses",
        ),
        # ASCII, so that a lone surrogate inside stays an escape.
        template_json=json.dumps(shown) if shown else "",
        echoed=echoed,
        echoed_choice=echoed_choice,
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


def _read_choice(fields: Fields, names: frozenset[str]) -> tuple[Choice, str | dict[str, Any]]:
    """Return the choice, and the choice as the response repeats it."""
    value = fields.get("tool_choice")
    if value is None:
        return Choice(ToolChoice.AUTO, names), "auto"
    if isinstance(value, str):
        mode = read_mode(value, "tool_choice")
        if mode is ToolChoice.REQUIRED and not names:
            raise invalid("tool_choice", "required needs tools to choose from")
        return Choice(mode, frozenset() if mode is ToolChoice.NONE else names), value
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", value, "a string or an object")
    choice = Fields(value, "tool_choice")
    if choice.get("type") == ALLOWED_TOOLS:
        allowed = read_allowed(choice, names, _read_name)
        tools = [{"type": "function", "name": name} for name in sorted(allowed.names)]
        return allowed, {"type": ALLOWED_TOOLS, "mode": allowed.mode.name.lower(), "tools": tools}
    name = _read_name(choice)
    if name not in names:
        raise invalid("tool_choice.name", "must be the name of one of tools")
    return Choice(ToolChoice.NAMED, frozenset((name,))), {"type": "function", "name": name}


def _read_name(named: Fields) -> str:
    """Return the name in `{"type": "function", "name": ...}`."""
    kind = named.required_text("type")
    if kind != "function":
        path = named.path("type")
        raise InvalidRequestError(
            f"{path}: {kind[:64]} is not supported; only function is",
            reason="UNSUPPORTED_PARAMETER",
            field=path,
        )
    return named.required_text("name")
