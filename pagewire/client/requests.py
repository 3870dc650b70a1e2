"""Builds the messages of requests from prompts and options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf.message import Message

from pagewire.client.options import (
    ChatOptions,
    GenerateOptions,
    TokenizeOptions,
    given_options,
    sampling_values,
)
from pagewire.client.types import ChatMessage
from pagewire.kit.errors import InvalidRequestError
from pagewire.v1 import inference_pb2
from pagewire.wire import structured_outputs_to_proto

Prompt: TypeAlias = str | Sequence[int]
"""A text, or token ids."""
Conversation: TypeAlias = str | Sequence[ChatMessage | Mapping[str, Any]]
"""Messages, as `ChatMessage` or as OpenAI's dictionaries; a text is one message of the user."""

_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "thinking_token_budget",
)
_STOPPING = (
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
)
_RESPONSE = ("skip_special_tokens", "logprobs", "logprob_token_ids", "prompt_logprobs")
_REPEATED = ("allowed_token_ids", "bad_words")
_TOP = ("model", "request_id", "priority", "truncate_prompt_tokens")
_TEMPLATE = ("add_generation_prompt", "continue_final_message")
_TOKENIZE = ("model", "add_special_tokens")
_MODES = {
    "none": inference_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": inference_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": inference_pb2.TOOL_CHOICE_MODE_REQUIRED,
}


def generate_request(
    prompt: Prompt, options: Mapping[str, Any]
) -> tuple[inference_pb2.GenerateRequest, float | None]:
    """Return the message and the timeout in seconds, if one is among the options.

    Raises:
        InvalidRequestError: A value or the prompt is wrong.
        TypeError: An unknown option.
    """
    given = given_options(options, GenerateOptions)
    request = inference_pb2.GenerateRequest(add_special_tokens=given.get("add_special_tokens"))
    set_prompt(request, prompt)
    set_common(request, given)
    return request, given.get("timeout")


def chat_request(
    conversation: Conversation, options: Mapping[str, Any]
) -> tuple[inference_pb2.ChatRequest, float | None]:
    """Return the message and the timeout in seconds, if one is among the options.

    Raises:
        InvalidRequestError: A value or a message is wrong.
        TypeError: An unknown option.
    """
    given = given_options(options, ChatOptions)
    request = inference_pb2.ChatRequest(messages=chat_messages(conversation))
    set_common(request, given)
    set_template(request, given)
    request.parallel_tool_calls = given.get("parallel_tool_calls", True)
    if (choice := given.get("tool_choice")) is not None:
        mode = _MODES.get(choice)
        request.tool_choice.CopyFrom(
            inference_pb2.ToolChoice(mode=mode)
            if mode is not None
            else inference_pb2.ToolChoice(function_name=choice)
        )
    return request, given.get("timeout")


def tokenize_request(
    what: str | Conversation, options: Mapping[str, Any]
) -> tuple[inference_pb2.TokenizeRequest, float | None]:
    """Return the message for a text or a conversation, and the timeout, if one is given.

    Raises:
        InvalidRequestError: A value or a message is wrong.
        TypeError: An unknown option.
    """
    request = inference_pb2.TokenizeRequest()
    return request, _set_tokenize(request, what, options)


def count_tokens_request(
    what: str | Conversation, options: Mapping[str, Any]
) -> tuple[inference_pb2.CountTokensRequest, float | None]:
    """Return the message for a text or a conversation, and the timeout, if one is given.

    Raises:
        InvalidRequestError: A value or a message is wrong.
        TypeError: An unknown option.
    """
    request = inference_pb2.CountTokensRequest()
    return request, _set_tokenize(request, what, options)


def detokenize_request(
    token_ids: Sequence[int], model: str, skip_special_tokens: bool
) -> inference_pb2.InferenceServiceDetokenizeRequest:
    """Return the message.

    Raises:
        InvalidRequestError: They are no token ids.
    """
    try:
        return inference_pb2.InferenceServiceDetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(
            "token_ids: must be integers from 0 on", reason="INVALID_PARAMETER", field="token_ids"
        ) from exc


def set_prompt(message: Any, prompt: Prompt) -> None:
    """Set `text` or `token_ids` of a message that has both.

    Raises:
        InvalidRequestError: It is neither a text nor token ids.
    """
    if isinstance(prompt, str):
        message.text = _utf8(prompt, "prompt")
        return
    try:
        message.token_ids.ids.extend(prompt)
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(
            "prompt: must be a text or token ids from 0 on", reason="INVALID_PROMPT", field="prompt"
        ) from exc
    message.token_ids.SetInParent()  # no ids at all are refused by name, not as a missing prompt


def set_common(message: Any, given: Mapping[str, Any]) -> None:
    """Set what requests of all kinds have in common.

    Args:
        message: A GenerateRequest, ChatRequest or GenerateBatchRequest.
        given: From `given_options`.

    Raises:
        InvalidRequestError: A value is out of its bounds.
    """
    values = sampling_values(given)
    try:
        _set(message, given, _TOP)
        message.cache.salt = given.get("cache_salt", "")
        _set_sampling(message.sampling, values, given.get("n"))
        _set(message.stopping, values, _STOPPING)
        _set(message.response, values, _RESPONSE)
    except (TypeError, ValueError) as exc:
        raise InvalidRequestError(
            f"an option has a wrong type or is out of range: {exc}", reason="INVALID_PARAMETER"
        ) from exc
    # Logprobs are rows of tokens, so whoever asks for them wants the ids of the others too.
    message.response.return_token_ids = bool(
        given.get("return_token_ids")
        or values.get("logprobs") is not None
        or values.get("logprob_token_ids")
    )
    outputs = values.get("structured_outputs")
    if outputs is not None:
        message.response.structured_outputs.CopyFrom(structured_outputs_to_proto(outputs))


def chat_messages(conversation: Conversation) -> list[inference_pb2.ChatMessage]:
    """Return the messages of a conversation.

    Raises:
        InvalidRequestError: One is neither a `ChatMessage` nor such a dictionary.
    """
    if isinstance(conversation, str):
        conversation = (ChatMessage("user", conversation),)
    return [_chat_message(each, index) for index, each in enumerate(conversation)]


def set_template(message: Any, given: Mapping[str, Any]) -> None:
    """Set what messages with a conversation have in common, the conversation itself aside."""
    _set(message, given, _TEMPLATE)
    for tool in given.get("tools", ()):
        parameters = json.dumps(tool.parameters) if tool.parameters else ""
        message.tools.add(
            name=tool.name,
            description=tool.description,
            parameters_json=parameters,
            strict=tool.strict,
        )
    if (arguments := given.get("chat_template_kwargs")) is not None:
        message.template_arguments_json = json.dumps(arguments)


def _set_tokenize(
    message: Any, what: str | Conversation, options: Mapping[str, Any]
) -> float | None:
    given = given_options(options, TokenizeOptions)
    if isinstance(what, str):
        message.text = _utf8(what, "text")
    else:
        message.messages.extend(chat_messages(what))
    _set(message, given, _TOKENIZE)
    set_template(message, given)
    return given.get("timeout")


def _chat_message(each: ChatMessage | Mapping[str, Any], index: int) -> inference_pb2.ChatMessage:
    if isinstance(each, Mapping):
        each = _from_dictionary(each, f"messages[{index}]")
    _utf8(each.content, f"messages[{index}].content")
    return inference_pb2.ChatMessage(
        role=each.role,
        content=each.content,
        name=each.name,
        tool_calls=[
            inference_pb2.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)
            for call in each.tool_calls
        ],
        tool_call_id=each.tool_call_id,
        reasoning=each.reasoning,
    )


def _from_dictionary(values: Mapping[str, Any], path: str) -> ChatMessage:
    try:
        return ChatMessage(**{**values, "content": values.get("content") or ""})
    except TypeError:
        names = ", ".join(ChatMessage.__dataclass_fields__)
        raise InvalidRequestError(
            f"{path}: needs a role, and may have: {names}", field=path
        ) from None


def _utf8(text: str, field: str) -> str:
    """Return the text if a message can hold it."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequestError(
            f"{field}: must be a text without lone surrogates", reason="INVALID_PROMPT", field=field
        ) from None
    return text


def _set_sampling(
    message: inference_pb2.SamplingOptions, values: Mapping[str, Any], n: int | None
) -> None:
    _set(message, values, _SAMPLING)
    if n is not None:
        message.n = n
    if "top_k" in values:
        message.top_k = max(values["top_k"], 0)
    if values.get("seed") is not None:
        message.seed = values["seed"] % 2**64  # a negative seed is the same 64 bits
    for name in _REPEATED:
        getattr(message, name).extend(values.get(name, ()))
    for token_id, bias in values.get("logit_bias", ()):
        message.logit_bias[token_id] = bias


def _set(message: Message, values: Mapping[str, Any], names: Sequence[str]) -> None:
    """Set fields of the same name; None leaves a field absent."""
    for name in names:
        value = values.get(name)
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)
