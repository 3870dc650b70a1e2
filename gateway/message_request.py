"""What a chat request says of the assistant's message: tools, calls, reasoning.

Both front doors build one; `message_plan` acts on it. It knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.tools.tool import Tool, ToolChoice

RequestType = Literal["chat_completions", "responses", "other"]


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """How the outputs of a chat are to be read, and what they must be."""

    tools: tuple[Tool, ...] = ()
    """Those that may be called: with NAMED, the one."""
    tool_choice: ToolChoice = ToolChoice.NONE
    only_these: bool = False
    """Whether a call of any other name must not come, as far as the format can force it."""
    parallel_tool_calls: bool = True
    """Whether there may be several calls in one message."""
    include_reasoning: bool = True
    """Whether the client wants to see it."""
    streamed: bool = True
    """Whether outputs are read as they come."""
    request_type: RequestType = "other"
    """By which API it came, for metrics."""


def tools_of(functions: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Return tools from OpenAI's form, `{"type": "function", "function": ...}`, checked before."""
    tools = [each["function"] for each in functions]
    return tuple(
        Tool(tool["name"], tool.get("parameters") or {}, bool(tool.get("strict"))) for tool in tools
    )
