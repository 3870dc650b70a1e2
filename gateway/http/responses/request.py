"""The body of `POST /v1/responses`: what is asked for, what is refused, what the answer repeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.generation import ChatMessage, ChatPrompt, GenerationRequest
from gateway.http.conversation import effort_arguments
from gateway.http.fields import Fields, check_text, invalid, wrong_type
from gateway.http.known_names import refuse_unsupported
from gateway.http.parameters import read_cache_salt, read_priority, read_sampling
from gateway.http.responses.input_items import Item, listed_items
from gateway.http.responses.items import read_input
from gateway.http.responses.tools import ResponseTools, read_tools
from gateway.http.structured_outputs import read_schema
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import MAX_LOGPROBS, StructuredOutputs

_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY_CHARS = 64
_MAX_METADATA_VALUE_CHARS = 512
_LOGPROBS = "message.output_text.logprobs"
# OpenAI's; what the others name is never in an answer of this server.
INCLUDABLE = (
    _LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)

# What only OpenAI's own servers have, or what would change the output unseen.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "moderation": (),
    "n": (1,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
}
# Fields that have another name here than inside.
FIELD_NAMES = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens", "messages": "input"}
# Of the names that other endpoints refuse, what is read here.
_READ = ("tools", "tool_choice", "top_logprobs")
# Names that change no output here; those of hosted tools' results have nothing to show.
_HINTS = (
    "context_management",
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """What a body asks for."""

    model: str
    instructions: str | None
    input: tuple[ChatMessage, ...]
    input_items: tuple[Item, ...]
    """The input, as the API lists it."""
    previous_response_id: str | None
    tools: ResponseTools
    sampling: Mapping[str, Any]
    template_arguments_json: str
    truncate: bool
    cache_salt: str
    priority: int
    stream: bool
    store: bool
    with_logprobs: bool
    echoed: Mapping[str, Any]
    """Fields of the response that repeat the request."""

    def generation_request(self, previous: tuple[ChatMessage, ...]) -> GenerationRequest:
        """Return the generation that answers, given the conversation that it goes on from."""
        instructions = self.instructions
        system = () if instructions is None else (ChatMessage("system", instructions),)
        prompt = ChatPrompt(
            messages=(*system, *previous, *self.input),
            template_arguments_json=self.template_arguments_json,
            tools_json=self.tools.template_json,
        )
        return GenerationRequest(
            model=self.model,
            prompts=(prompt,),
            sampling=self.sampling,
            cache_salt=self.cache_salt,
            priority=self.priority,
            truncate_prompt_tokens=-1 if self.truncate else None,
            message=self.tools.message,
        )


def read_response(fields: Fields) -> ResponseCall:
    """Return what the body asks for.

    Raises:
        InvalidRequestError: Names the field.
    """
    _refuse(fields)
    tools = read_tools(fields)
    sampling = _read_sampling(fields)
    with_logprobs = _LOGPROBS in _read_include(fields)
    top_logprobs = fields.integer("top_logprobs")
    if top_logprobs is not None and not 0 <= top_logprobs <= MAX_LOGPROBS:
        raise invalid("top_logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    if with_logprobs:
        sampling["logprobs"] = top_logprobs or 0
    instructions = fields.text("instructions")
    previous_response_id = fields.text("previous_response_id")
    truncation = _read_truncation(fields)
    reasoning = _read_reasoning(fields)
    store = fields.boolean("store", default=True)
    echoed = {
        "instructions": instructions,
        "max_output_tokens": sampling.get("max_tokens"),
        "max_tool_calls": fields.integer("max_tool_calls"),
        "metadata": _read_metadata(fields),
        "parallel_tool_calls": tools.message.parallel_tool_calls,
        "previous_response_id": previous_response_id,
        "reasoning": reasoning,
        "service_tier": "default",
        "store": store,
        "text": _echoed_text(fields),
        "tool_choice": tools.echoed_choice,
        "tools": tools.echoed,
        "top_logprobs": top_logprobs or 0,
        "truncation": truncation,
        "user": fields.text("user"),
    }
    return ResponseCall(
        model=fields.text("model") or "",
        instructions=instructions,
        input=read_input(fields),
        input_items=listed_items(fields.get("input")) if store else (),
        previous_response_id=previous_response_id,
        tools=tools,
        sampling=sampling,
        template_arguments_json=_template_arguments(fields, reasoning["effort"]),
        truncate=truncation == "auto",
        cache_salt=read_cache_salt(fields),
        priority=read_priority(fields),
        stream=fields.boolean("stream"),
        store=store,
        with_logprobs=with_logprobs,
        echoed=echoed,
    )


def _refuse(fields: Fields) -> None:
    for name, harmless in _UNSUPPORTED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise _unsupported(name, "is not supported by this server; leave it out")
    refuse_unsupported(fields, _READ)
    fields.object("stream_options")
    for name in _HINTS:
        fields.get(name)


def _read_sampling(fields: Fields) -> dict[str, Any]:
    sampling = read_sampling(fields, ("max_output_tokens",))
    form = _read_format(fields)
    if form is not None:
        if "structured_outputs" in sampling:
            raise invalid("text.format", "excludes structured_outputs: give one of them")
        sampling["structured_outputs"] = form
    return sampling


def _read_format(fields: Fields) -> StructuredOutputs | None:
    """Return the form that `text.format` asks for; None: anything."""
    text = fields.object("text")
    form = text.object("format") if text is not None else None
    if form is None:
        return None
    kind = form.required_text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True)
    if kind != "json_schema":
        raise _unsupported(form.path("type"), f"{kind[:64]} is not supported")
    form.required_text("name")
    form.boolean("strict")
    schema = form.get("schema")
    if schema is None:
        raise invalid(form.path("schema"), "is required: give a JSON schema")
    return StructuredOutputs(json_schema=read_schema(schema, form.path("schema")))


def _read_include(fields: Fields) -> list[Any]:
    included = fields.array("include") or []
    for index, name in enumerate(included):
        if name not in INCLUDABLE:
            rule = f"must be one of {', '.join(INCLUDABLE)}"
            raise invalid(f"include[{index}]", rule)
    return included


def _echoed_text(fields: Fields) -> dict[str, Any]:
    text = fields.object("text")
    verbosity = text.text("verbosity") if text is not None else None
    form = text.object("format") if text is not None else None
    echoed = {"format": dict(form.items()) if form is not None else {"type": "text"}}
    return echoed | ({"verbosity": verbosity} if verbosity is not None else {})


def _read_truncation(fields: Fields) -> str:
    truncation = fields.text("truncation") or "disabled"
    if truncation not in ("auto", "disabled"):
        raise invalid("truncation", "must be auto or disabled")
    return truncation


def _read_reasoning(fields: Fields) -> dict[str, Any]:
    """Read `reasoning`; a summary that is asked for is not made: the reasoning itself comes."""
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return {"effort": None, "summary": None}
    reasoning.text("generate_summary")
    return {"effort": reasoning.text("effort"), "summary": reasoning.text("summary")}


def _template_arguments(fields: Fields, effort: str | None) -> str:
    arguments = fields.object("chat_template_kwargs")
    values = effort_arguments(effort, "reasoning.effort")
    values |= dict(arguments.items()) if arguments is not None else {}
    return json.dumps(values) if values else ""


def _read_metadata(fields: Fields) -> dict[str, str]:
    metadata = fields.object("metadata")
    if metadata is None:
        return {}
    pairs = metadata.items()
    if len(pairs) > _MAX_METADATA_PAIRS:
        raise invalid("metadata", f"must have at most {_MAX_METADATA_PAIRS} pairs")
    for key, value in pairs.items():
        check_text(key, "metadata")
        path = metadata.path(key[:_MAX_METADATA_KEY_CHARS])
        if len(key) > _MAX_METADATA_KEY_CHARS:
            raise invalid(path, f"keys have at most {_MAX_METADATA_KEY_CHARS} characters")
        if not isinstance(value, str):
            raise wrong_type(path, value, "a string")
        if len(check_text(value, path)) > _MAX_METADATA_VALUE_CHARS:
            raise invalid(path, f"must have at most {_MAX_METADATA_VALUE_CHARS} characters")
    return dict(pairs)


def _unsupported(field: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {why}", reason="UNSUPPORTED_PARAMETER", field=field)
