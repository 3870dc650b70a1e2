"""Messages of content blocks, as the messages of a conversation that templates know.

Results of tools stand among a user's blocks and become messages of their own; neighbours of the
user become one message, as in Anthropic's API.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gateway.generation import ChatMessage
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from gateway.http.responses.items import assistant_message, call_of
from pagewire.kit.errors import InvalidRequestError

MAX_MESSAGES = 4096

_ROLES = ("user", "assistant", "system")


def read_system(fields: Fields) -> tuple[ChatMessage, ...]:
    """Return what the body has to say before the conversation.

    Raises:
        InvalidRequestError: Names the block.
    """
    if fields.get("system") is None:
        return ()
    return (ChatMessage("system", _text_of(fields.get("system"), fields.path("system"))),)


def read_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    """Return the conversation.

    Raises:
        InvalidRequestError: Names the message, the block and its field.
    """
    values = fields.array("messages")
    if not values:
        raise invalid("messages", "must be an array of at least one message")
    if len(values) > MAX_MESSAGES:
        raise invalid("messages", f"{len(values)} are too many; at most {MAX_MESSAGES}")
    messages: list[ChatMessage] = []
    for index, value in enumerate(values):
        here = f"messages[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(here, value, "an object")
        message = Fields(value, here)
        role = message.required_text("role")
        if role not in _ROLES:
            raise invalid(message.path("role"), f"must be one of {', '.join(_ROLES)}")
        for each in _read_message(message, role):
            _append(messages, each)
    return tuple(messages)


def _append(messages: list[ChatMessage], message: ChatMessage) -> None:
    last = messages[-1] if messages else None
    if last is not None and last.role == message.role == "user":
        messages[-1] = replace(last, content=f"{last.content}\n{message.content}")
    else:
        messages.append(message)


def _read_message(message: Fields, role: str) -> list[ChatMessage]:
    content, path = message.get("content"), message.path("content")
    if role == "system":
        return [ChatMessage(role, _text_of(content, path))]
    if isinstance(content, str):
        return [ChatMessage(role, check_text(content, path))]
    blocks = _blocks(content, path)
    if not blocks:
        raise invalid(path, "must not be empty")
    return [_read_turn(blocks)] if role == "assistant" else _read_user(blocks)


def _read_user(blocks: list[Fields]) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    for block in blocks:
        kind = block.required_text("type")
        if kind == "text":
            _append(messages, ChatMessage("user", block.required_text("text")))
        elif kind == "tool_result":
            messages.append(_read_result(block))
        else:
            raise _unsupported(block, kind, "text and tool_result")
    return messages


def _read_result(block: Fields) -> ChatMessage:
    content = block.get("content")
    text = "" if content is None else _text_of(content, block.path("content"))
    if block.boolean("is_error"):
        text = f"Error: {text}"
    return ChatMessage("tool", text, tool_call_id=block.required_text("tool_use_id"))


def _read_turn(blocks: list[Fields]) -> ChatMessage:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        kind = block.required_text("type")
        if kind == "text":
            texts.append(block.required_text("text"))
        elif kind == "thinking":
            thoughts.append(block.required_text("thinking"))
        elif kind == "tool_use":
            arguments = block.object("input")
            calls.append(
                call_of(
                    block.required_text("id"),
                    block.required_text("name"),
                    json.dumps(arguments.items() if arguments is not None else {}),
                )
            )
        elif kind != "redacted_thinking":  # which holds nothing for us
            raise _unsupported(block, kind, "text, thinking and tool_use")
    return assistant_message("\n".join(texts), "\n".join(thoughts), calls)


def _text_of(value: Any, path: str) -> str:
    """Read a string, or an array of text blocks, which become lines."""
    if isinstance(value, str):
        return check_text(value, path)
    texts = []
    for block in _blocks(value, path):
        kind = block.required_text("type")
        if kind != "text":
            raise _unsupported(block, kind, "text")
        texts.append(block.required_text("text"))
    return "\n".join(texts)


def _blocks(value: Any, path: str) -> list[Fields]:
    if not isinstance(value, list):
        raise invalid(path, "must be a string or an array of blocks")
    for index, block in enumerate(value):
        if not isinstance(block, dict):
            raise wrong_type(f"{path}[{index}]", block, "an object")
    return [Fields(block, f"{path}[{index}]") for index, block in enumerate(value)]


def _unsupported(block: Fields, kind: str, known: str) -> InvalidRequestError:
    path = block.path("type")
    return InvalidRequestError(
        f"{path}: {kind[:64]} is not supported here; this server takes {known}",
        reason="UNSUPPORTED_PARAMETER",
        field=path,
    )
