"""Requests of the public contract, as the gateway's own `GenerationRequest`."""

from __future__ import annotations

from typing import Any

from gateway.convert.conversation import invalid, read_conversation
from gateway.engine_pool import ServedModel
from gateway.generation import ChatPrompt, GenerationRequest, Prompt
from pagewire.kit.errors import InvalidRequestError
from pagewire.v1 import inference_pb2
from pagewire.wire import structured_outputs_from_proto

GENERATE_DEFAULT_MAX_TOKENS = 16

_MAX_REQUEST_ID_CHARS = 128

Request = (
    inference_pb2.GenerateRequest | inference_pb2.ChatRequest | inference_pb2.GenerateBatchRequest
)
TokensRequest = inference_pb2.CountTokensRequest | inference_pb2.TokenizeRequest

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "thinking_token_budget",
)
_RESPONSE = ("skip_special_tokens", "logprobs", "prompt_logprobs")


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
    special = not message.HasField("add_special_tokens") or message.add_special_tokens
    return read_options(
        message,
        (prompt,),
        timeout_s,
        default_max_tokens=GENERATE_DEFAULT_MAX_TOKENS,
        add_special_tokens=special,
    )


def prompt_to_tokenize(message: TokensRequest) -> tuple[str | ChatPrompt, bool]:
    """Return what CountTokens and Tokenize are about, and whether a text gets special tokens.

    Raises:
        InvalidRequestError: Names the field.
    """
    special = not message.HasField("add_special_tokens") or message.add_special_tokens
    if not message.messages:
        return message.text, special
    if message.text:
        raise invalid("text", "excludes messages: give one of them")
    return read_conversation(message), special


def models_response(models: dict[str, ServedModel]) -> inference_pb2.ListModelsResponse:
    return inference_pb2.ListModelsResponse(
        models=[
            inference_pb2.Model(id=name, max_model_len=each.max_model_len, created=each.created)
            for name, each in models.items()
        ]
    )


def read_options(
    message: Request, prompts: tuple[Prompt, ...], timeout_s: float | None, **more: Any
) -> GenerationRequest:
    """Read what requests of all kinds have in common.

    Args:
        message: The request.
        prompts: What it is about.
        timeout_s: Of the call.
        more: Fields of the result.

    Raises:
        InvalidRequestError: Names the field.
    """
    if len(message.request_id) > _MAX_REQUEST_ID_CHARS:
        raise invalid("request_id", f"must have at most {_MAX_REQUEST_ID_CHARS} characters")
    truncated = message.HasField("truncate_prompt_tokens")
    return GenerationRequest(
        model=message.model,
        prompts=prompts,
        sampling=_sampling(message),
        n=message.sampling.n if message.sampling.HasField("n") else 1,
        timeout_s=timeout_s,
        cache_salt=message.cache.salt,
        priority=message.priority,
        request_id=message.request_id,
        truncate_prompt_tokens=message.truncate_prompt_tokens if truncated else None,
        **more,
    )


def _sampling(message: Request) -> dict[str, Any]:
    """Return the fields that are set; a field without presence is set when it is not zero."""
    sampling, stopping, response = message.sampling, message.stopping, message.response
    values = _present(sampling, _SAMPLING) | _present(stopping, ("max_tokens",))
    values |= _present(response, _RESPONSE)
    if response.HasField("structured_outputs"):
        outputs = response.structured_outputs
        values["structured_outputs"] = structured_outputs_from_proto(outputs)
    plain: dict[str, Any] = {
        "min_tokens": stopping.min_tokens,
        "stop": tuple(stopping.stop),
        "stop_token_ids": tuple(stopping.stop_token_ids),
        "include_stop_str_in_output": stopping.include_stop_str_in_output,
        "ignore_eos": stopping.ignore_eos,
        "logit_bias": tuple(sampling.logit_bias.items()),
        "bad_words": tuple(sampling.bad_words),
        "allowed_token_ids": tuple(sampling.allowed_token_ids),
        "logprob_token_ids": tuple(response.logprob_token_ids),
    }
    return values | {name: value for name, value in plain.items() if value}


def _present(options: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if options.HasField(name)}
