"""Settings of how outputs are read as messages: parsers of tool calls and of reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MessageConfig:
    """How a model's text is read."""

    enable_auto_tool_choice: bool = True
    """Let the model choose whether it calls tools (tool_choice auto)."""
    tool_call_parser: Literal[
        "auto",
        "hermes",
        "json",
        "llama3_json",
        "llama4_json",
        "llama4_pythonic",
        "mistral",
        "pythonic",
    ] = "auto"
    """Format in which the model calls tools; auto: as its chat template shows."""
    reasoning_parser: Literal["none", "deepseek_r1", "qwen3"] = "none"
    """How the model marks its reasoning, which is then told apart from the answer."""
