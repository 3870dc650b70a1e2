"""The conversation of a chat completion: messages, and what the template sees beside them."""

from __future__ import annotations

import json
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from pagewire.kit.errors import InvalidRequestError
from pagewire.kit.json_depth import is_too_deep

MAX_MESSAGES = 4096

# OpenAI's name for what open models' templates know as system.
_ROLES = {"developer": "system"} | {
    role: role for role in ("system", "user", "assistant", "tool", "function")
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def read_conversation(fields: Fields) -> ChatPrompt:
    """Return the conversation that the body holds, without its tools.

    Raises:
        InvalidRequestError: Names the field.
    """
    messages = fields.array("messages")
    if not messages:
        raise invalid("messages", "must be an array of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"{len(messages)} are too many; at most {MAX_MESSAGES}")
    continue_final = fields.boolean("continue_final_message")
    add_prompt = fields.boolean("add_generation_prompt", default=not continue_final)
    if continue_final and add_prompt:
        raise invalid("continue_final_message", "excludes add_generation_prompt")
    return ChatPrompt(
        messages=tuple(_read_message(each, f"messages[{i}]") for i, each in enumerate(messages)),
        template_arguments_json=_read_template_arguments(fields),
        add_generation_prompt=add_prompt,
        continue_final_message=continue_final,
        chat_template=fields.text("chat_template") or "",
        add_special_tokens=fields.boolean("add_special_tokens"),
    )


def _read_template_arguments(fields: Fields) -> str:
    """Read what the template sees beside the conversation, documents and effort among it."""
    arguments = fields.object("chat_template_kwargs")
    documents = fields.array("documents")
    effort = fields.text("reasoning_effort")
    values = effort_arguments(effort, "reasoning_effort") | (
        dict(arguments.items()) if arguments else {}
    )
    if documents:
        for index, document in enumerate(documents):
            if not isinstance(document, dict):
                raise wrong_type(f"documents[{index}]", document, "an object")
        values["documents"] = documents
    return _to_json(values) if values else ""


def effort_arguments(effort: str | None, path: str) -> dict[str, Any]:
    """Return the effort of reasoning, found at `path`, as templates know it.

    Raises:
        InvalidRequestError: There is no such effort.
    """
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise invalid(path, f"must be one of {', '.join(_EFFORTS)}")
    # Most templates that can leave reasoning out go by this name.
    thinking = {"enable_thinking": False} if effort == _EFFORTS[0] else {}
    return {"reasoning_effort": effort, **thinking}


def _read_message(value: Any, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong_type(path, value, "an object")
    message = Fields(value, path)
    role = message.required_text("role")
    if role not in _ROLES:
        raise invalid(message.path("role"), f"must be one of {', '.join(_ROLES)}")
    tool_calls = message.array("tool_calls")
    content = _read_content(message)
    if content is None and not tool_calls:
        raise invalid(message.path("content"), "is required: give a string")
    return ChatMessage(
        role=_ROLES[role],
        content=content,
        name=message.text("name") or "",
        tool_calls_json=_to_json(_read_calls(tool_calls, message)) if tool_calls else "",
        tool_call_id=message.text("tool_call_id") or "",
        reasoning_content=message.text("reasoning") or message.text("reasoning_content") or "",
    )


def _read_calls(calls: list[Any], message: Fields) -> list[dict[str, Any]]:
    """Return the assistant's calls as templates know them."""
    read = []
    for index, value in enumerate(calls):
        here = f"{message.path('tool_calls')}[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(here, value, "an object")
        call = Fields(value, here)
        function = call.object("function")
        if function is None:
            raise invalid(call.path("function"), "is required: give name and arguments")
        shown = {
            "name": function.required_text("name"),
            "arguments": _read_arguments(function),
        }
        read.append({"id": call.text("id") or "", "type": "function", "function": shown})
    return read


def _read_arguments(function: Fields) -> dict[str, Any]:
    """Read a JSON object, as text or as it is."""
    value = function.get("arguments")
    if isinstance(value, str):
        try:
            text, value = value, json.loads(value or "{}")
        except (ValueError, RecursionError):
            text = value = ""  # no object either
        if is_too_deep(text, value):
            raise invalid(function.path("arguments"), "is nested too deeply")
    if value is not None and not isinstance(value, dict):
        raise invalid(function.path("arguments"), "must be a JSON object, as text")
    return value or {}


def _read_content(message: Fields) -> str | None:
    """Read a string, or an array of text parts, which become lines."""
    content = message.get("content")
    path = message.path("content")
    if not isinstance(content, list):
        return None if content is None else check_text(content, path)
    texts = []
    for index, part in enumerate(content):
        here = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise wrong_type(here, part, "an object")
        kind = Fields(part, here).required_text("type")
        if kind != "text":
            raise InvalidRequestError(
                f"{here}.type: {kind[:64]} is not supported yet; only text is",
                reason="UNSUPPORTED_PARAMETER",
                field=f"{here}.type",
            )
        texts.append(Fields(part, here).required_text("text"))
    return "\n".join(texts)


def _to_json(value: Any) -> str:
    # ASCII, so that a lone surrogate inside stays an escape.
    return json.dumps(value)
