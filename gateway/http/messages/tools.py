"""Tools of the Messages API: functions of the client's, and whether one must be called.

Tools that Anthropic defines or runs itself (`bash_...`, `web_search_...`) are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gateway.http.chat_tools import MAX_TOOLS, NAME, NAME_RULE, ChatTools
from gateway.http.fields import Fields, invalid, wrong_type
from gateway.message_request import MessageRequest, tools_of
from gateway.tools.tool import ToolChoice
from pagewire.kit.errors import InvalidRequestError

_MODES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.NAMED,
    "none": ToolChoice.NONE,
}


def read_tools(fields: Fields, include_reasoning: bool) -> ChatTools:
    """Return the tools, and what the message may do with them.

    Raises:
        InvalidRequestError: Names the tool and its field.
    """
    functions, strict = _read_functions(fields)
    names = [each["function"]["name"] for each in functions]
    if len(set(names)) < len(names):
        raise invalid("tools", "have the same name twice")
    choice = fields.object("tool_choice")
    mode = ToolChoice.AUTO if functions else ToolChoice.NONE
    callable_, parallel = functions, True
    if choice is not None:
        mode = _read_mode(choice)
        parallel = not choice.boolean("disable_parallel_tool_use")
        if mode in (ToolChoice.REQUIRED, ToolChoice.NAMED) and not functions:
            raise invalid("tool_choice", "needs tools: give them, or leave it out")
        mode = mode if functions else ToolChoice.NONE
    if choice is not None and mode is ToolChoice.NAMED:
        name = choice.required_text("name")
        if name not in names:
            raise invalid(choice.path("name"), "must be the name of one of tools")
        callable_ = [functions[names.index(name)]]
    # Models that were shown tools call them, whatever they were told.
    shown = [] if mode is ToolChoice.NONE else functions
    tools = tools_of([] if mode is ToolChoice.NONE else callable_)
    return ChatTools(
        MessageRequest(
            tools=tuple(replace(each, strict=each.name in strict) for each in tools),
            tool_choice=mode,
            parallel_tool_calls=parallel,
            include_reasoning=include_reasoning,
        ),
        # ASCII, so that a lone surrogate inside stays an escape.
        json.dumps(shown) if shown else "",
    )


def _read_mode(choice: Fields) -> ToolChoice:
    kind = choice.required_text("type")
    if kind not in _MODES:
        raise invalid(choice.path("type"), f"must be one of {', '.join(_MODES)}")
    return _MODES[kind]


def _read_functions(fields: Fields) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the tools in OpenAI's form, and the names of strict ones."""
    values = fields.array("tools") or []
    if len(values) > MAX_TOOLS:
        raise invalid("tools", f"{len(values)} are too many; at most {MAX_TOOLS}")
    functions, strict = [], set[str]()
    for index, value in enumerate(values):
        here = f"tools[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(here, value, "an object")
        tool = Fields(value, here)
        function = _read_function(tool)
        functions.append({"type": "function", "function": function})
        if tool.boolean("strict"):
            strict.add(function["name"])
    return functions, strict


def _read_function(tool: Fields) -> dict[str, Any]:
    kind = tool.text("type") or "custom"
    if kind != "custom":
        raise InvalidRequestError(
            f"{tool.path('type')}: {kind[:64]} is a tool that this server does not know; only"
            " custom is supported",
            reason="UNSUPPORTED_PARAMETER",
            field=tool.path("type"),
        )
    name = tool.required_text("name")
    if not NAME.fullmatch(name):
        raise invalid(tool.path("name"), NAME_RULE)
    schema = tool.object("input_schema")
    if schema is None:
        raise invalid(tool.path("input_schema"), "is required: give a JSON schema")
    description = tool.text("description")
    more = {"description": description} if description is not None else {}
    return {"name": name, **more, "parameters": dict(schema.items())}
