"""A Generate request of `VllmEngine` to the engine's own parameters.

Everything is honoured or refused by name. In proto3 a number that was not set is 0, so where 0
makes no sense (top_p, repetition_penalty, n) it means the default, as in vLLM's own servicer.
It knows no engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from smg_grpc_proto.generated import vllm_engine_pb2

from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, StructuredOutputs

MAX_N = 128
"""Most outputs of one request."""

_SEED_SPACE = 2**64
_PLAIN = (
    *("min_p", "frequency_penalty", "presence_penalty", "min_tokens", "ignore_eos"),
    *("skip_special_tokens", "include_stop_str_in_output"),
)
_OPTIONAL = ("max_tokens", "logprobs", "prompt_logprobs", "seed")
# What would change the output and is not to be had here.
_REFUSED = {
    "mm_inputs": "this engine takes text only",
    "extra_mm_inputs": "this engine takes text only",
    "media_refs": "this engine takes text only",
    "kv_transfer_params": "prefill and decode are not served apart",
    "kv_transfer_params_json": "prefill and decode are not served apart",
}


@dataclass(frozen=True, slots=True)
class GenerateParameters:
    """What is asked for."""

    prompt_token_ids: Sequence[int]
    choices: tuple[SamplingParams, ...]
    """Of each of the n outputs; they differ in their seeds."""
    stop: tuple[str, ...]
    """Strings that end an output."""


def generate_parameters(
    request: vllm_engine_pb2.GenerateRequest, *, max_model_len: int, max_logprobs: int
) -> GenerateParameters:
    """Read the request.

    Args:
        request: The message.
        max_model_len: Most tokens of a request.
        max_logprobs: Most candidates with their logprobs that may be asked for.

    Raises:
        InvalidRequestError: Names the field that is out of its bounds or not served.
    """
    _refuse_unserved(request)
    params = sampling_params(request.sampling_params)
    for name in ("logprobs", "prompt_logprobs"):
        _check_at_most(name, getattr(params, name), max_logprobs)
    num_choices = request.sampling_params.n or 1
    _check_at_most("n", num_choices, MAX_N)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    return GenerateParameters(
        _prompt(request, params, max_model_len),
        tuple(replace(params, seed=(seed + i) % _SEED_SPACE) for i in range(num_choices)),
        params.stop,
    )


def sampling_params(message: vllm_engine_pb2.SamplingParams) -> SamplingParams:
    """Read the parameters of one output.

    Raises:
        InvalidRequestError: Names the field that is out of its bounds or not served.
    """
    present = {descriptor.name for descriptor, _ in message.ListFields()}
    values = {name: getattr(message, name) for name in _PLAIN}
    values |= {name: getattr(message, name) for name in _OPTIONAL if name in present}
    return SamplingParams(
        **values,
        temperature=message.temperature if "temperature" in present else 1.0,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        repetition_penalty=message.repetition_penalty or 1.0,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        logit_bias=tuple(sorted(message.logit_bias.items())),
        structured_outputs=_structured_outputs(message),
    ).normalized()


def _structured_outputs(message: vllm_engine_pb2.SamplingParams) -> StructuredOutputs | None:
    kind = message.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "choice":
        return StructuredOutputs(choice=tuple(message.choice.choices))
    if kind == "json_object" and not message.json_object:
        return None
    return StructuredOutputs(**{kind: getattr(message, kind)})


def _prompt(
    request: vllm_engine_pb2.GenerateRequest, params: SamplingParams, max_model_len: int
) -> Sequence[int]:
    prompt = list(request.tokenized.input_ids)
    if not request.sampling_params.HasField("truncate_prompt_tokens"):
        return prompt
    num_kept = request.sampling_params.truncate_prompt_tokens
    if num_kept == -1:
        num_kept = max(1, max_model_len - (params.max_tokens or 1))
    if num_kept < 1:
        raise InvalidRequestError(
            f"truncate_prompt_tokens: {num_kept} is not valid: must be -1 (what the context holds)"
            " or at least 1",
            reason="INVALID_PARAMETER",
            field="truncate_prompt_tokens",
        )
    return prompt[-num_kept:]


def _refuse_unserved(request: vllm_engine_pb2.GenerateRequest) -> None:
    present = {descriptor.name for descriptor, _ in request.ListFields()}
    for name, why in _REFUSED.items():
        if name in present:
            raise _not_served(name, why)
    if "tokenized" not in present:
        raise _not_served("text", "send token ids in `tokenized`")
    if request.data_parallel_rank != 0:
        raise _not_served("data_parallel_rank", "this engine has one rank, 0")


def _check_at_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise InvalidRequestError(
            f"{name}: {value} is too many: at most {most} are allowed",
            reason="INVALID_PARAMETER",
            field=name,
        )


def _not_served(name: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} is not served: {hint}", reason="UNSUPPORTED_PARAMETER", field=name
    )
