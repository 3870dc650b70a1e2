"""Input items of the Responses API, as the messages of a conversation.

Items are finer than messages: an assistant's turn comes as a reasoning item, a message and calls,
one after another, and becomes one message of the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.generation import ChatMessage
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from pagewire.kit.errors import InvalidRequestError

MAX_ITEMS = 4096

# OpenAI's name for what open models' templates know as system.
_ROLES = {"developer": "system"} | {role: role for role in ("system", "user", "assistant")}
_TEXT_PARTS = ("input_text", "output_text", "text")


def read_input(fields: Fields) -> tuple[ChatMessage, ...]:
    """Return the conversation that `input` is: a text of the user, or items.

    Raises:
        InvalidRequestError: Names the item and its field.
    """
    value = fields.get("input")
    path = fields.path("input")
    if isinstance(value, str):
        return (ChatMessage("user", check_text(value, path)),)
    if value is None:
        raise invalid(path, "is required: give a string or an array of items")
    if not isinstance(value, list):
        raise wrong_type(path, value, "a string or an array of items")
    if not value:
        raise invalid(path, "must not be empty")
    if len(value) > MAX_ITEMS:
        raise invalid(path, f"{len(value)} items are too many; at most {MAX_ITEMS}")
    conversation = _Conversation()
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if not isinstance(item, dict):
            raise wrong_type(here, item, "an object")
        _read_item(Fields(item, here), conversation)
    return conversation.finish()


@dataclass(slots=True)
class _Turn:
    """What the assistant said, thought and called before it was somebody else's turn."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


class _Conversation:
    """Gathers an assistant's items into one message."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._turn: _Turn | None = None

    @property
    def turn(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def add(self, message: ChatMessage) -> None:
        self._end_turn()
        self._messages.append(message)

    def finish(self) -> tuple[ChatMessage, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._messages.append(
                assistant_message("\n".join(turn.content), "\n".join(turn.reasoning), turn.calls)
            )


def assistant_message(content: str, reasoning: str, calls: list[dict[str, Any]]) -> ChatMessage:
    """Return an assistant's turn; `calls` are in the form of chat completions."""
    return ChatMessage(
        role="assistant",
        content=None if calls and not content else content,
        tool_calls_json=json.dumps(calls) if calls else "",
        reasoning_content=reasoning,
    )


def call_of(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a function in the form of chat completions."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _read_item(item: Fields, conversation: _Conversation) -> None:
    kind = item.text("type")
    if kind is None and item.get("role") is not None:
        kind = "message"
    reader = _READERS.get(kind or "")
    if reader is None:
        known = ", ".join(_READERS)
        what = f"{kind[:64]} is not supported" if kind else "is required"
        raise InvalidRequestError(
            f"{item.path('type')}: {what}; this server takes {known}",
            reason="UNSUPPORTED_PARAMETER",
            field=item.path("type"),
        )
    reader(item, conversation)


def _read_message(item: Fields, conversation: _Conversation) -> None:
    role = item.required_text("role")
    if role not in _ROLES:
        raise invalid(item.path("role"), f"must be one of {', '.join(_ROLES)}")
    text = _read_text(item, "content", _TEXT_PARTS)
    if role == "assistant":
        conversation.turn.content.append(text)
    else:
        conversation.add(ChatMessage(_ROLES[role], text))


def _read_call(item: Fields, conversation: _Conversation) -> None:
    call_id, name = item.required_text("call_id"), item.required_text("name")
    arguments = item.required_text("arguments")
    conversation.turn.calls.append(call_of(call_id, name, arguments))


def _read_call_output(item: Fields, conversation: _Conversation) -> None:
    call_id = item.required_text("call_id")
    text = _read_text(item, "output", _TEXT_PARTS)
    conversation.add(ChatMessage("tool", text, tool_call_id=call_id))


def _read_reasoning(item: Fields, conversation: _Conversation) -> None:
    """Take the reasoning itself, else its summary; an encrypted one holds nothing for us."""
    text = _read_text(item, "summary", ("summary_text",)) if item.get("summary") else ""
    if item.get("content") is not None:
        text = _read_text(item, "content", ("reasoning_text",))
    if text:
        conversation.turn.reasoning.append(text)


_READERS: Mapping[str, Callable[[Fields, _Conversation], None]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_call_output,
    "reasoning": _read_reasoning,
}


def _read_text(item: Fields, name: str, kinds: tuple[str, ...]) -> str:
    """Read a string, or an array of text parts, which become lines."""
    value, path = item.get(name), item.path(name)
    if value is None:
        raise invalid(path, "is required: give a string or an array of parts")
    if not isinstance(value, list):
        return check_text(value, path)
    texts = []
    for index, part in enumerate(value):
        here = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise wrong_type(here, part, "an object")
        fields = Fields(part, here)
        kind = fields.required_text("type")
        if kind not in kinds:
            raise InvalidRequestError(
                f"{here}.type: {kind[:64]} is not supported; this server takes {kinds[0]}",
                reason="UNSUPPORTED_PARAMETER",
                field=f"{here}.type",
            )
        texts.append(fields.required_text("text"))
    return "\n".join(texts)
