"""The public protobuf contract to and from the gateway's own types; nothing else reads it.

Clients of other services (`engine_stream`, `tokenizer_client`, ...) build their own messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.engine_pool import ServedModel
from gateway.generation import (
    ChatMessage,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerationRequest,
    Output,
    Usage,
)
from gateway.live_generation import Generation
from pagewire.kit.errors import InvalidRequestError, UnimplementedError
from pagewire.v1 import common_pb2, inference_pb2
from pagewire.wire import structured_outputs_from_proto

GENERATE_DEFAULT_MAX_TOKENS = 16

_MAX_REQUEST_ID_CHARS = 128

Request = inference_pb2.GenerateRequest | inference_pb2.ChatRequest
Event = (
    inference_pb2.GenerationStarted
    | inference_pb2.GenerationDelta
    | inference_pb2.GenerationFinished
    | common_pb2.Usage
)

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.REPETITION: common_pb2.FINISH_REASON_REPETITION,
}


def generate_request(
    message: inference_pb2.GenerateRequest, timeout_s: float | None
) -> GenerationRequest:
    """Read a GenerateRequest.

    Raises:
        InvalidRequestError: Names the field.
    """
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequestError(
            "prompt: set text or token_ids", reason="EMPTY_PROMPT", field="prompt"
        )
    prompt = message.text if kind == "text" else tuple(message.token_ids.ids)
    return _request(message, prompt, timeout_s, GENERATE_DEFAULT_MAX_TOKENS)


def chat_request(message: inference_pb2.ChatRequest, timeout_s: float | None) -> GenerationRequest:
    """Read a ChatRequest.

    Raises:
        InvalidRequestError: Names the field.
    """
    prompt = chat_prompt(message.messages, message.template_arguments_json)
    return _request(message, prompt, timeout_s, None)


def chat_prompt(
    messages: Sequence[inference_pb2.ChatMessage], template_arguments_json: str = ""
) -> ChatPrompt:
    """Read a conversation.

    Raises:
        InvalidRequestError: It has no messages, or one without a role.
    """
    if not messages:
        raise InvalidRequestError(
            "messages: give at least one", reason="EMPTY_PROMPT", field="messages"
        )
    for index, each in enumerate(messages):
        if not each.role:
            field = f"messages[{index}].role"
            raise InvalidRequestError(f"{field}: is required", field=field)
    return ChatPrompt(
        tuple(ChatMessage(each.role, each.content, each.name) for each in messages),
        template_arguments_json,
    )


def wants_token_ids(message: Request) -> bool:
    return message.response.return_token_ids


def started(generation: Generation) -> inference_pb2.GenerationStarted:
    return inference_pb2.GenerationStarted(
        request_id=generation.request_id,
        model=generation.model,
        prompt_tokens=generation.usage.prompt_tokens,
    )


def output_events(outputs: Iterable[Output], with_token_ids: bool) -> Iterator[Event]:
    """Yield a delta for what is new, then a finish for what ended."""
    for output in outputs:
        token_ids = output.token_ids if with_token_ids else ()
        if output.text or token_ids:
            yield inference_pb2.GenerationDelta(
                index=output.index, text=output.text, token_ids=token_ids
            )
        if output.finished is not None:
            yield _finished(output.index, output.finished)


def usage_message(usage: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def generate_response(event: Event) -> inference_pb2.GenerateResponse:
    """Wrap an event."""
    return inference_pb2.GenerateResponse(**_by_kind(event))


def chat_response(event: Event) -> inference_pb2.ChatResponse:
    """Wrap an event."""
    if isinstance(event, inference_pb2.GenerationDelta):
        delta = inference_pb2.ChatDelta(
            index=event.index, content=event.text, token_ids=event.token_ids
        )
        return inference_pb2.ChatResponse(delta=delta)
    return inference_pb2.ChatResponse(**_by_kind(event))


def models_response(models: dict[str, ServedModel]) -> inference_pb2.ListModelsResponse:
    return inference_pb2.ListModelsResponse(
        models=[
            inference_pb2.Model(id=name, max_model_len=each.max_model_len, created=each.created)
            for name, each in models.items()
        ]
    )


def _request(
    message: Request,
    prompt: str | tuple[int, ...] | ChatPrompt,
    timeout_s: float | None,
    default_max_tokens: int | None,
) -> GenerationRequest:
    if len(message.request_id) > _MAX_REQUEST_ID_CHARS:
        raise InvalidRequestError(
            f"request_id: must have at most {_MAX_REQUEST_ID_CHARS} characters", field="request_id"
        )
    return GenerationRequest(
        model=message.model,
        prompts=(prompt,),
        sampling=_sampling(message),
        n=message.sampling.n if message.sampling.HasField("n") else 1,
        default_max_tokens=default_max_tokens,
        timeout_s=timeout_s,
        cache_salt=message.cache.salt,
        priority=message.priority,
        request_id=message.request_id,
    )


def _sampling(message: Request) -> dict[str, Any]:
    """Return the fields that are set; a field without presence is set when it is not zero."""
    sampling, stopping, response = message.sampling, message.stopping, message.response
    if response.HasField("logprobs"):
        raise UnimplementedError(
            "response.logprobs: not supported yet; leave it out", field="response.logprobs"
        )
    values: dict[str, Any] = {
        name: getattr(sampling, name)
        for name in _SAMPLING
        if sampling.HasField(name)  # type: ignore[arg-type]
    }
    if stopping.HasField("max_tokens"):
        values["max_tokens"] = stopping.max_tokens
    if response.HasField("skip_special_tokens"):
        values["skip_special_tokens"] = response.skip_special_tokens
    if response.HasField("structured_outputs"):
        outputs = response.structured_outputs
        values["structured_outputs"] = structured_outputs_from_proto(outputs)
    plain: dict[str, Any] = {
        "min_tokens": stopping.min_tokens,
        "stop": tuple(stopping.stop),
        "stop_token_ids": tuple(stopping.stop_token_ids),
        "include_stop_str_in_output": stopping.include_stop_str_in_output,
        "ignore_eos": stopping.ignore_eos,
    }
    return values | {name: value for name, value in plain.items() if value}


def _finished(index: int, finished: Finished) -> inference_pb2.GenerationFinished:
    message = inference_pb2.GenerationFinished(
        index=index, finish_reason=_FINISH_REASONS[finished.reason]
    )
    if finished.stop_string is not None:
        message.stop_string = finished.stop_string
    elif finished.stop_token_id is not None:
        message.stop_token_id = finished.stop_token_id
    elif finished.eos_token_id is not None:
        message.eos_token_id = finished.eos_token_id
    return message


def _by_kind(event: Event) -> dict[str, Any]:
    kinds = {
        inference_pb2.GenerationStarted: "started",
        inference_pb2.GenerationDelta: "delta",
        inference_pb2.GenerationFinished: "finished",
        common_pb2.Usage: "usage",
    }
    return {kinds[type(event)]: event}
