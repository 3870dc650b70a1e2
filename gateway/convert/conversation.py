"""Conversations of the public contract: messages, content parts, tools and calls of them.

Chat, CountTokens and Tokenize have the same fields for one. Templates and tool parsers know tools
in OpenAI's JSON, so that is what they become.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.json_depth import is_too_deep
from pagewire.v1 import inference_pb2

MAX_MESSAGES = 4096
MAX_TOOLS = 128

Conversation = (
    inference_pb2.ChatRequest | inference_pb2.CountTokensRequest | inference_pb2.TokenizeRequest
)


def read_conversation(message: Conversation) -> ChatPrompt:
    """Read the conversation that a request holds.

    Raises:
        InvalidRequestError: Names the field.
    """
    return ChatPrompt(messages=read_messages(message.messages), **read_template(message))


def read_messages(
    messages: Sequence[inference_pb2.ChatMessage], path: str = "messages"
) -> tuple[ChatMessage, ...]:
    """Read the messages of a conversation.

    Args:
        messages: All of them.
        path: Of the field that holds them.

    Raises:
        InvalidRequestError: Names the field.
    """
    if not messages:
        raise InvalidRequestError(f"{path}: give at least one", reason="EMPTY_PROMPT", field=path)
    if len(messages) > MAX_MESSAGES:
        raise invalid(path, f"{len(messages)} are too many; at most {MAX_MESSAGES}")
    return tuple(_message(each, f"{path}[{i}]") for i, each in enumerate(messages))


def read_template(message: Conversation | inference_pb2.GenerateBatchRequest) -> dict[str, Any]:
    """Return the fields of a `ChatPrompt` but for its messages.

    Raises:
        InvalidRequestError: Names the field.
    """
    continue_final = message.continue_final_message
    add_prompt = not continue_final
    if message.HasField("add_generation_prompt"):
        add_prompt = message.add_generation_prompt
    if continue_final and add_prompt:
        raise invalid("continue_final_message", "excludes add_generation_prompt")
    return {
        "template_arguments_json": message.template_arguments_json,
        "add_generation_prompt": add_prompt,
        "continue_final_message": continue_final,
        "tools_json": json.dumps(read_tools(message.tools)) if message.tools else "",
    }


def read_tools(tools: Sequence[inference_pb2.Tool]) -> list[dict[str, Any]]:
    """Return tools in OpenAI's form.

    Raises:
        InvalidRequestError: Names the field.
    """
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} are too many; at most {MAX_TOOLS}")
    return [_tool(each, f"tools[{i}]") for i, each in enumerate(tools)]


def invalid(field: str, rule: str) -> InvalidRequestError:
    """Return the error of a field that breaks a rule."""
    return InvalidRequestError(f"{field}: {rule}", reason="INVALID_PARAMETER", field=field)


def _message(message: inference_pb2.ChatMessage, path: str) -> ChatMessage:
    if not message.role:
        raise invalid(f"{path}.role", "is required")
    if message.content and message.parts:
        raise invalid(f"{path}.parts", "excludes content: give one of them")
    content: str | None = message.content
    if message.parts:
        content = "\n".join(
            _text_part(part, f"{path}.parts[{i}]") for i, part in enumerate(message.parts)
        )
    calls = [_call(each, f"{path}.tool_calls[{i}]") for i, each in enumerate(message.tool_calls)]
    return ChatMessage(
        role=message.role,
        content=None if calls and not content else content,
        name=message.name,
        tool_calls_json=json.dumps(calls) if calls else "",
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning,
    )


def _text_part(part: inference_pb2.ContentPart, path: str) -> str:
    if part.WhichOneof("part") is None:
        raise invalid(path, "is empty or of a kind that this server does not know; give text")
    return part.text


def _tool(tool: inference_pb2.Tool, path: str) -> dict[str, Any]:
    if not tool.name:
        raise invalid(f"{path}.name", "is required")
    # Templates show what they get, so they get no more than models were trained on.
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = _json_object(tool.parameters_json, f"{path}.parameters_json")
    return {"type": "function", "function": function}


def _call(call: inference_pb2.ToolCall, path: str) -> dict[str, Any]:
    if not call.name:
        raise invalid(f"{path}.name", "is required")
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}


def _json_object(text: str, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid(path, "must be a JSON object, as text")
    if is_too_deep(text, value):
        raise invalid(path, "is nested too deeply")
    return value
