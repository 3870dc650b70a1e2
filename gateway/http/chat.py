"""`POST /v1/chat/completions`: the body's fields, and the shape of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt, GenerationRequest, Output
from gateway.http.answers import stop_reason
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from gateway.http.parameters import (
    read_cache_salt,
    read_n,
    read_priority,
    read_sampling,
    refuse_unsupported,
)
from gateway.live_generation import Generation
from pagewire.kit.errors import InvalidRequestError

MAX_MESSAGES = 4096

# OpenAI's name for what open models' templates know as system.
_ROLES = {"developer": "system"} | {
    role: role for role in ("system", "user", "assistant", "tool", "function")
}


def read_chat(fields: Fields) -> GenerationRequest:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    refuse_unsupported(fields)
    return GenerationRequest(
        model=fields.text("model") or "",
        prompts=(read_conversation(fields),),
        sampling=read_sampling(fields, ("max_completion_tokens", "max_tokens")),
        n=read_n(fields),
        cache_salt=read_cache_salt(fields),
        priority=read_priority(fields),
    )


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Implements `answers.Shape`."""

    return_token_ids: bool = False

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        """The role of each choice."""
        for index in range(len(generation.requests)):
            yield self._chunk(generation, index, {"role": "assistant", "content": ""})

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        token_ids = {"token_ids": output.token_ids} if self.return_token_ids else {}
        if output.text or (self.return_token_ids and output.token_ids):
            yield self._chunk(generation, output.index, {"content": output.text}, **token_ids)
        if output.finished is not None:
            yield self._chunk(
                generation,
                output.index,
                {},
                finish_reason=output.finished.reason,
                stop_reason=stop_reason(output),
            )

    def usage_chunk(self, generation: Generation) -> dict[str, Any]:
        return self._object(generation, "chat.completion.chunk", [])

    def whole(self, generation: Generation, outputs: list[Output]) -> dict[str, Any]:
        choices = [self._choice(output) for output in outputs]
        return self._object(generation, "chat.completion", choices)

    def _chunk(
        self, generation: Generation, index: int, delta: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return self._object(generation, "chat.completion.chunk", [choice])

    def _choice(self, output: Output) -> dict[str, Any]:
        choice = {
            "index": output.index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": None,
            "finish_reason": output.finished.reason if output.finished else None,
            "stop_reason": stop_reason(output),
        }
        return choice | ({"token_ids": output.token_ids} if self.return_token_ids else {})

    def _object(
        self, generation: Generation, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{generation.request_id}",
            "object": kind,
            "created": generation.created,
            "model": generation.model,
            "choices": choices,
        }


def read_conversation(fields: Fields) -> ChatPrompt:
    messages = fields.array("messages")
    if not messages:
        raise invalid("messages", "must be an array of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"{len(messages)} are too many; at most {MAX_MESSAGES}")
    continue_final = fields.boolean("continue_final_message")
    add_prompt = fields.boolean("add_generation_prompt", default=not continue_final)
    if continue_final and add_prompt:
        raise invalid("continue_final_message", "excludes add_generation_prompt")
    arguments = fields.object("chat_template_kwargs")
    return ChatPrompt(
        messages=tuple(_read_message(each, f"messages[{i}]") for i, each in enumerate(messages)),
        template_arguments_json=_to_json(arguments.items()) if arguments else "",
        add_generation_prompt=add_prompt,
        continue_final_message=continue_final,
    )


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
        tool_calls_json=_to_json(tool_calls) if tool_calls else "",
        tool_call_id=message.text("tool_call_id") or "",
        reasoning_content=message.text("reasoning_content") or "",
    )


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
