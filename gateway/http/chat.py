"""`POST /v1/chat/completions`: the body's fields, and the shape of the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt, Output
from gateway.http.answers import Call, object_head, stop_reason
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from gateway.http.logprobs import TokenFormat, chat_logprobs, prompt_logprobs
from gateway.http.parameters import read_request, read_stream, read_top_logprobs
from gateway.live_generation import Generation
from pagewire.kit.errors import InvalidRequestError

MAX_MESSAGES = 4096

# OpenAI's name for what open models' templates know as system.
_ROLES = {"developer": "system"} | {
    role: role for role in ("system", "user", "assistant", "tool", "function")
}


# Names that completions does not honour.
_SUPPORTED = ("top_logprobs", "chat_template", "documents")


def read_chat(fields: Fields) -> Call:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompt = read_conversation(fields)
    names = ("max_completion_tokens", "max_tokens")
    request = read_request(fields, (prompt,), names, _SUPPORTED)
    num_top = read_top_logprobs(fields)
    if num_top is not None:
        request = replace(request, sampling={**request.sampling, "logprobs": num_top})
    shape = ChatShape(
        num_top_logprobs=num_top,
        num_prompt_logprobs=fields.integer("prompt_logprobs"),
        token_format=TokenFormat(fields.boolean("return_tokens_as_token_ids")),
        return_token_ids=fields.boolean("return_token_ids"),
        echoed=_echoed(prompt) if fields.boolean("echo") else "",
    )
    return Call(request, shape, read_stream(fields))


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Implements `answers.Shape`."""

    num_top_logprobs: int | None = None
    """Of each output token; None: no logprobs."""
    num_prompt_logprobs: int | None = None
    token_format: TokenFormat = field(default_factory=TokenFormat)
    return_token_ids: bool = False
    echoed: str = ""
    """What every answer begins with, before the model's own text."""

    def first_chunks(self, generation: Generation) -> Iterable[dict[str, Any]]:
        """The role of each choice, and what is echoed."""
        for index in range(len(generation.requests)):
            yield self._chunk(generation, index, {"role": "assistant", "content": ""}) | (
                self._prompt_token_ids(generation) if index == 0 else {}
            )
            if self.echoed:
                yield self._chunk(generation, index, {"content": self.echoed})

    def chunks(self, generation: Generation, output: Output) -> Iterable[dict[str, Any]]:
        token_ids = {"token_ids": output.token_ids} if self.return_token_ids else {}
        if output.text or output.logprobs or (self.return_token_ids and output.token_ids):
            logprobs = self._logprobs(output)
            delta = {"content": output.text}
            yield self._chunk(generation, output.index, delta, logprobs=logprobs, **token_ids)
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
        whole = self._object(generation, "chat.completion", choices)
        if self.num_prompt_logprobs is not None and outputs[0].prompt_logprobs is not None:
            places = outputs[0].prompt_logprobs
            whole["prompt_logprobs"] = prompt_logprobs(places, self.num_prompt_logprobs)
        return whole | self._prompt_token_ids(generation)

    def _chunk(
        self, generation: Generation, index: int, delta: dict[str, Any], **more: Any
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return self._object(generation, "chat.completion.chunk", [choice])

    def _choice(self, output: Output) -> dict[str, Any]:
        choice = {
            "index": output.index,
            "message": {
                "role": "assistant",
                "content": self.echoed + output.text,
                "refusal": None,
            },
            "logprobs": self._logprobs(output),
            "finish_reason": output.finished.reason if output.finished else None,
            "stop_reason": stop_reason(output),
        }
        return choice | ({"token_ids": output.token_ids} if self.return_token_ids else {})

    def _object(
        self, generation: Generation, kind: str, choices: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return object_head(generation, "chatcmpl", kind) | {"choices": choices}

    def _logprobs(self, output: Output) -> dict[str, Any] | None:
        if self.num_top_logprobs is None:
            return None
        return chat_logprobs(output.logprobs, self.num_top_logprobs, self.token_format)

    def _prompt_token_ids(self, generation: Generation) -> dict[str, Any]:
        if not self.return_token_ids:
            return {}
        return {"prompt_token_ids": list(generation.prompt_token_ids(0))}


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
    return ChatPrompt(
        messages=tuple(_read_message(each, f"messages[{i}]") for i, each in enumerate(messages)),
        template_arguments_json=_read_template_arguments(fields),
        add_generation_prompt=add_prompt,
        continue_final_message=continue_final,
        chat_template=fields.text("chat_template") or "",
        add_special_tokens=fields.boolean("add_special_tokens"),
    )


def _read_template_arguments(fields: Fields) -> str:
    """Read what the template sees beside the conversation, documents among it."""
    arguments = fields.object("chat_template_kwargs")
    documents = fields.array("documents")
    values = dict(arguments.items()) if arguments else {}
    if documents:
        for index, document in enumerate(documents):
            if not isinstance(document, dict):
                raise wrong_type(f"documents[{index}]", document, "an object")
        values["documents"] = documents
    return _to_json(values) if values else ""


def _echoed(prompt: ChatPrompt) -> str:
    """Return what the assistant said last, where the conversation ends with it."""
    last = prompt.messages[-1]
    return last.content or "" if last.role == "assistant" else ""


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
