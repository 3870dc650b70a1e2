"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`: what is asked for and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt, GenerationRequest
from gateway.http.conversation import effort_arguments
from gateway.http.fields import Fields, invalid
from gateway.http.known_names import refuse_unsupported
from gateway.http.messages.conversation import read_messages, read_system
from gateway.http.messages.tools import read_tools
from gateway.http.parameters import read_cache_salt, read_priority, read_sampling
from gateway.http.structured_outputs import read_schema
from gateway.message_request import MessageRequest
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import StructuredOutputs

# Fields that have another name here than inside.
_FIELD_NAMES = {"stop": "stop_sequences"}
_BUDGET = "thinking_token_budget"

# What only Anthropic's own servers have, or what has no place in the answer.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "n": (1,),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "echo": (False,),
}
# Of the names that other endpoints refuse, what is read here.
_READ = ("tools", "tool_choice")
# Names that change no output here.
_HINTS = ("cache_control", "inference_geo", "speed")
_THINKING = ("disabled", "adaptive", "enabled")
# Efforts that have another name inside.
_EFFORTS = {"max": "xhigh"}


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """What a body asks for."""

    request: GenerationRequest
    stream: bool
    field_names: Mapping[str, str]
    """What the client calls fields that have another name inside."""


@dataclass(frozen=True, slots=True)
class CountCall:
    """What a body of /v1/messages/count_tokens asks for."""

    model: str
    prompt: ChatPrompt


def read_call(fields: Fields) -> MessagesCall:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    if fields.get("max_tokens") is None:
        raise invalid("max_tokens", "is required: give the most tokens that the answer may have")
    sampling, names = _read_sampling(fields), dict(_FIELD_NAMES)
    prompt, message = _read_prompt(fields)
    budget, stream = _read_budget(fields), fields.boolean("stream")
    if budget is not None:
        if _BUDGET in sampling:
            raise invalid("thinking.budget_tokens", f"excludes {_BUDGET}: give one of them")
        sampling[_BUDGET], names[_BUDGET] = budget, "thinking.budget_tokens"
    return MessagesCall(
        GenerationRequest(
            model=fields.text("model") or "",
            prompts=(prompt,),
            sampling=sampling,
            cache_salt=read_cache_salt(fields),
            priority=read_priority(fields),
            message=replace(message, streamed=stream),
        ),
        stream,
        names,
    )


def read_count(fields: Fields) -> CountCall:
    """Return what the body asks to count.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompt, _ = _read_prompt(fields)
    return CountCall(fields.text("model") or "", prompt)


def _read_prompt(fields: Fields) -> tuple[ChatPrompt, MessageRequest]:
    _refuse(fields)
    thinking, is_shown = _read_thinking(fields)
    tools = read_tools(fields, include_reasoning=is_shown)
    messages = read_messages(fields)
    continues = _is_begun(messages[-1])
    prompt = ChatPrompt(
        messages=(*read_system(fields), *messages),
        template_arguments_json=_template_arguments(fields, thinking),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tools_json=tools.template_json,
    )
    return prompt, tools.message


def _is_begun(last: ChatMessage) -> bool:
    """Whether the answer goes on with what the assistant has said last."""
    return last.role == "assistant" and not last.tool_calls_json


def _read_sampling(fields: Fields) -> dict[str, Any]:
    sampling = read_sampling(fields, ("max_tokens",))
    stop = fields.texts("stop_sequences")
    if stop:
        if sampling.get("stop"):
            raise invalid("stop_sequences", "excludes stop: give one of them")
        sampling["stop"] = stop
    form = _read_format(fields)
    if form is not None:
        if "structured_outputs" in sampling:
            raise invalid("output_config.format", "excludes structured_outputs: give one of them")
        sampling["structured_outputs"] = form
    return sampling


def _read_format(fields: Fields) -> StructuredOutputs | None:
    """Return the form of the answer's text; None: anything."""
    config = fields.object("output_config")
    form = config.object("format") if config is not None else None
    form = form or fields.object("output_format")
    if form is None:
        return None
    if form.required_text("type") != "json_schema":
        raise invalid(form.path("type"), "must be json_schema")
    schema = form.get("schema")
    if schema is None:
        raise invalid(form.path("schema"), "is required: give a JSON schema")
    return StructuredOutputs(json_schema=read_schema(schema, form.path("schema")))


def _read_thinking(fields: Fields) -> tuple[bool | None, bool]:
    """Return whether the model is to think (None: as it does by itself), and is to be seen so."""
    thinking = fields.object("thinking")
    if thinking is None:
        return None, True
    kind = thinking.required_text("type")
    if kind not in _THINKING:
        raise invalid(thinking.path("type"), f"must be one of {', '.join(_THINKING)}")
    is_on = kind != "disabled"
    return is_on, is_on and thinking.text("display") != "omitted"


def _read_budget(fields: Fields) -> int | None:
    """Return how many tokens the model may think; None: as many as it wants."""
    thinking = fields.object("thinking")
    if thinking is None or thinking.text("type") != "enabled":
        return None
    budget, path = thinking.integer("budget_tokens"), thinking.path("budget_tokens")
    if budget is None:
        raise invalid(path, "is required: give the most tokens of thinking")
    if budget < 1:
        raise invalid(path, "must be at least 1; to switch thinking off, use the type disabled")
    return budget


def _template_arguments(fields: Fields, thinking: bool | None) -> str:
    config = fields.object("output_config")
    effort = config.text("effort") if config is not None else None
    values = effort_arguments(_EFFORTS.get(effort or "", effort), "output_config.effort")
    if thinking is not None:
        # Most templates that can leave reasoning out go by this name.
        values["enable_thinking"] = thinking
    arguments = fields.object("chat_template_kwargs")
    values |= dict(arguments.items()) if arguments is not None else {}
    return json.dumps(values) if values else ""


def _refuse(fields: Fields) -> None:
    for name, harmless in _UNSUPPORTED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise InvalidRequestError(
                f"{name}: is not supported by this server; leave it out",
                reason="UNSUPPORTED_PARAMETER",
                field=name,
            )
    refuse_unsupported(fields, _READ)
    for name in _HINTS:
        fields.get(name)
