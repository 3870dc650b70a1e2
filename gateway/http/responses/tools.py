"""Tools of the Responses API: functions, in a flatter form than that of chat completions.

Tools that OpenAI's servers run themselves (`web_search`, `file_search`, ...) are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from gateway.http.fields import Fields, invalid, wrong_type
from pagewire.kit.errors import InvalidRequestError

MAX_TOOLS = 128

_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The functions that the model may call, and whether it must."""

    functions: tuple[dict[str, Any], ...] = ()
    """In the form of chat completions."""
    choice: Any = "auto"
    """`none`, `auto`, `required`, or an object that names a function, as in chat completions."""
    parallel: bool = True
    echoed: list[dict[str, Any]] = field(default_factory=list)
    """The tools as the response repeats them."""
    echoed_choice: Any = "auto"

    @property
    def template_json(self) -> str:
        """The tools for the chat template; empty: none."""
        return json.dumps(self.functions) if self.functions else ""


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
    choice, echoed_choice = _read_choice(fields, [each["name"] for each in echoed])
    return ResponseTools(
        functions=tuple(functions),
        choice=choice,
        parallel=fields.boolean("parallel_tool_calls", default=True),
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
    if not name:
        raise invalid(tool.path("name"), "must not be empty")
    parameters = tool.object("parameters")
    schema = dict(parameters.items()) if parameters is not None else None
    strict, description = tool.boolean("strict"), tool.text("description")
    echo = {"type": "function", "name": name, "description": description}
    echo = {**echo, "parameters": schema, "strict": strict}
    function: dict[str, Any] = {"name": name, "parameters": schema if schema is not None else {}}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function}, echo


def _read_choice(fields: Fields, names: list[str]) -> tuple[Any, Any]:
    """Return the choice in the form of chat completions, and as the response repeats it."""
    value = fields.get("tool_choice")
    if value is None:
        return "auto", "auto"
    if isinstance(value, str):
        if value not in _MODES:
            raise invalid("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        if value == "required" and not names:
            raise invalid("tool_choice", "required needs tools to choose from")
        return value, value
    choice = fields.object("tool_choice")
    if choice is None:
        return "auto", "auto"
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
    named = {"type": "function", "function": {"name": name}}
    return named, {"type": "function", "name": name}
