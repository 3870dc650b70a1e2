"""The rules for one request that need only the engine's figures: parameters, context, seeds.

Pure functions, called by `request_service` before anything reaches an engine. Bounds of single
parameters are in `pagewire.sampling_params`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from gateway.config import RequestLimits
from gateway.engine_client import EngineInfo
from gateway.generation import ChatPrompt, GenerationRequest, Prompt
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import SamplingParams, check_token_ids

MAX_CACHE_SALT_CHARS = 1024

_AS_MANY_AS_FIT = -1
_SEED_BITS = 63
_SEED_SPACE = 2**64


def resolve_params(request: GenerationRequest, info: EngineInfo) -> SamplingParams:
    """Return the client's parameters over the model's defaults, checked; with a seed.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    defaults, given = info.default_sampling_params, request.sampling
    if given.get("seed", defaults.seed) is None:
        given = {**given, "seed": secrets.randbits(_SEED_BITS)}
    params = replace(defaults, **given)
    params.check_vocabulary(info.vocab_size)
    _check_can_go_on(params, info)
    _check_num_logprobs(params, info)
    if request.n > 1 and params.is_greedy:
        raise InvalidRequestError(
            f"n: {request.n} outputs at temperature 0 would all be the same; use n=1 or a higher"
            " temperature",
            reason="INVALID_PARAMETER",
            field="n",
        )
    return params.normalized()


def check_sizes(request: GenerationRequest, limits: RequestLimits, info: EngineInfo) -> None:
    """Refuse what is too large before anything is tokenized.

    Raises:
        InvalidRequestError: Names the limit.
    """
    if not request.prompts:
        raise InvalidRequestError(
            "prompt: give at least one", reason="EMPTY_PROMPT", field="prompt"
        )
    if request.n < 1:
        raise InvalidRequestError("n: must be at least 1", reason="INVALID_PARAMETER", field="n")
    if len(request.cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequestError(
            f"cache_salt: must have at most {MAX_CACHE_SALT_CHARS} characters",
            reason="INVALID_PARAMETER",
            field="cache_salt",
        )
    num_outputs = len(request.prompts) * request.n
    if num_outputs > limits.max_outputs_per_request:
        raise InvalidRequestError(
            f"{len(request.prompts)} prompts times n={request.n} are {num_outputs} outputs; at most"
            f" {limits.max_outputs_per_request} are allowed in one request",
            reason="TOO_MANY_OUTPUTS",
            field="n",
        )
    for prompt in request.prompts:
        if isinstance(prompt, tuple):
            if request.truncate_prompt_tokens is None or not prompt:
                _check_length(len(prompt), info.max_model_len, "prompt")
            _check_token_ids(prompt, info.vocab_size)
        else:
            check_prompt_bytes(prompt, limits.max_prompt_bytes)


def check_prompt_bytes(prompt: str | ChatPrompt, max_bytes: int) -> None:
    """Refuse a text or conversation of more than `max_bytes` in UTF-8.

    Raises:
        InvalidRequestError: Names the limit.
    """
    field = _field(prompt)
    texts = [prompt] if isinstance(prompt, str) else _texts(prompt)
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > max_bytes:
        raise InvalidRequestError(
            f"{field}: {num_bytes} bytes are too long; at most {max_bytes} are taken",
            reason="PROMPT_TOO_LONG",
            field=field,
        )


def fit_to_context(
    params: SamplingParams, request: GenerationRequest, num_prompt_tokens: int, info: EngineInfo
) -> SamplingParams:
    """Return the parameters with max_tokens set: the client's as it is, a default clamped.

    Raises:
        InvalidRequestError: The prompt, or prompt and max_tokens, exceed the context.
    """
    _check_length(num_prompt_tokens, info.max_model_len, _field(request.prompts[0]))
    room = info.max_model_len - num_prompt_tokens
    explicit = request.sampling.get("max_tokens")
    if explicit is not None:
        if explicit > room:
            raise _too_long(
                f"max_tokens: {explicit} do not fit: the prompt has {num_prompt_tokens} tokens,"
                f" which leaves {room}",
                info.max_model_len,
                "max_tokens",
            )
        return params
    defaults = [params.max_tokens, request.default_max_tokens, room]
    return replace(params, max_tokens=min(value for value in defaults if value is not None))


def prompt_limit(request: GenerationRequest, info: EngineInfo) -> int | None:
    """Return how many tokens of each prompt are kept; None: all of them.

    Raises:
        InvalidRequestError: `truncate_prompt_tokens` is no such number, or exceeds the context.
    """
    wanted = request.truncate_prompt_tokens
    if wanted is None:
        return None
    if wanted == _AS_MANY_AS_FIT:
        room = request.sampling.get("max_tokens") or request.default_max_tokens or 1
        return max(1, info.max_model_len - room)
    if not 1 <= wanted <= info.max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens: must be -1 or between 1 and {info.max_model_len}, the"
            " model's context length",
            reason="INVALID_PARAMETER",
            field="truncate_prompt_tokens",
        )
    return wanted


def child_params(params: SamplingParams, child: int) -> SamplingParams:
    """Return the parameters of output `child` of n: seed + child."""
    return replace(params, seed=((params.seed or 0) + child) % _SEED_SPACE) if child else params


def _check_can_go_on(params: SamplingParams, info: EngineInfo) -> None:
    """Refuse what leaves no token to draw before min_tokens: ends are forbidden until then."""
    if not params.min_tokens or not params.allowed_token_ids:
        return
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else info.eos_token_ids)
    if ends.issuperset(params.allowed_token_ids):
        raise InvalidRequestError(
            "allowed_token_ids: all of them end the output, which min_tokens forbids; allow others"
            " too or leave min_tokens out",
            reason="INVALID_PARAMETER",
            field="allowed_token_ids",
        )


def _check_num_logprobs(params: SamplingParams, info: EngineInfo) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and value > info.max_logprobs:
            raise InvalidRequestError(
                f"{name}: {value} are too many; this model's engine gives at most"
                f" {info.max_logprobs} (--max-logprobs)",
                reason="INVALID_PARAMETER",
                field=name,
            )


def _texts(prompt: ChatPrompt) -> list[str]:
    texts = [prompt.template_arguments_json, prompt.tools_json, prompt.chat_template]
    for message in prompt.messages:
        texts += [message.content or "", message.tool_calls_json, message.reasoning_content]
        texts += [message.role, message.name, message.tool_call_id]
    return texts


def _check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    # min and max run in C; the loop that names the culprit only on an error.
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        check_token_ids("prompt", token_ids, vocab_size)


def _field(prompt: Prompt) -> str:
    """Return the name of the client's field that the prompt came in."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _check_length(num_prompt_tokens: int, max_model_len: int, field: str) -> None:
    if num_prompt_tokens == 0:
        raise InvalidRequestError(
            f"{field}: it has no tokens; give at least one", reason="EMPTY_PROMPT", field=field
        )
    if num_prompt_tokens >= max_model_len:
        raise _too_long(
            f"the prompt has {num_prompt_tokens} tokens, which leaves no room for output",
            max_model_len,
            field,
        )


def _too_long(what: str, max_model_len: int, field: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"This model's maximum context length is {max_model_len} tokens. {what}",
        reason="CONTEXT_LENGTH_EXCEEDED",
        field=field,
    )
