"""Whether a request may enter: checks against the model, the pool and the queue.

A request that could never run is refused at once, before it holds up anyone. It knows no state but
what it is given.
"""

from __future__ import annotations

from pagewire.kit.errors import InvalidRequestError, QueueFullError
from pagewire.sampling_params import StructuredOutputs, check_token_ids
from scheduler_svc.kv_cache_groups import max_held_blocks
from scheduler_svc.limits import SchedulerLimits
from scheduler_svc.request import EngineCoreRequest, max_total_tokens
from scheduler_svc.request_queue import RequestQueue

QUEUE_FULL_RETRY_AFTER_S = 1.0
MAX_PROMPT_LOGPROBS = 1 << 18
"""Most log-probabilities of one prompt: they travel in one message."""


def check_request(request: EngineCoreRequest, limits: SchedulerLimits) -> None:
    """Refuse a request that this engine can never serve.

    Raises:
        InvalidRequestError: Names the field and the limit.
    """
    _check_tokens(request, limits)
    _check_context(request, limits)
    _check_pool(request, limits)
    _check_num_logprobs(request, limits)
    _check_prompt_logprobs(request)
    if request.priority != 0 and limits.policy != "priority":
        raise InvalidRequestError(
            f"priority {request.priority}: priorities need --scheduling-policy priority",
            reason="PRIORITY_NOT_SUPPORTED",
            field="priority",
        )


def check_queue(request: EngineCoreRequest, queue: RequestQueue, limits: SchedulerLimits) -> None:
    """Refuse a request that would overfill the queue; resumed ones always pass.

    A request longer than the token limit passes when nothing waits, or it never could.

    Raises:
        QueueFullError: Says when to try again.
    """
    num_waiting = queue.num_waiting
    if request.is_resumed or num_waiting == 0:
        return
    num_tokens = len(request.prompt_token_ids) + queue.num_tokens
    if num_waiting >= limits.max_num_queued_requests:
        rule = f"{num_waiting} requests are waiting, at most {limits.max_num_queued_requests} may"
    elif num_tokens > limits.max_num_queued_tokens:
        rule = f"{num_tokens} tokens would wait, at most {limits.max_num_queued_tokens} may"
    else:
        return
    raise QueueFullError(
        f"the queue is full: {rule}", reason="QUEUE_FULL", retry_after_s=QUEUE_FULL_RETRY_AFTER_S
    )


def check_grammar_size(structured_outputs: StructuredOutputs, max_bytes: int) -> None:
    """Refuse a form whose text is too long to be compiled.

    Raises:
        InvalidRequestError: Names the limit.
    """
    num_bytes = structured_outputs.num_bytes
    if num_bytes > max_bytes:
        raise InvalidRequestError(
            f"structured_outputs has {num_bytes} bytes, at most {max_bytes} are taken",
            reason="GRAMMAR_TOO_LARGE",
            field="structured_outputs",
        )


def _check_tokens(request: EngineCoreRequest, limits: SchedulerLimits) -> None:
    if not request.prompt_token_ids:
        raise InvalidRequestError(
            "the prompt has no tokens", reason="EMPTY_PROMPT", field="prompt_token_ids"
        )
    for field, token_ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("output_token_ids", request.output_token_ids),
    ):
        # min and max run in C; the loop that names the culprit only on an error.
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < limits.vocab_size):
            check_token_ids(field, token_ids, limits.vocab_size)
    request.sampling_params.check_vocabulary(limits.vocab_size)
    if request.output_token_ids and not request.is_resumed:
        raise InvalidRequestError(
            "only a resumed request has output tokens",
            reason="NOT_RESUMED",
            field="output_token_ids",
        )


def _check_context(request: EngineCoreRequest, limits: SchedulerLimits) -> None:
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens >= limits.max_model_len:
        raise InvalidRequestError(
            f"This model's maximum context length is {limits.max_model_len} tokens; the prompt has"
            f" {num_prompt_tokens}, which leaves no room for output",
            reason="PROMPT_TOO_LONG",
            field="prompt_token_ids",
        )
    if num_prompt_tokens + len(request.output_token_ids) >= max_total_tokens(
        request, limits.max_model_len
    ):
        raise InvalidRequestError(
            f"the request already has {len(request.output_token_ids)} output tokens, as many as"
            " max_tokens and the context allow",
            reason="ALREADY_COMPLETE",
            field="output_token_ids",
        )


def _check_pool(request: EngineCoreRequest, limits: SchedulerLimits) -> None:
    # The last token is drawn but never computed, so it needs no slot.
    num_slots = max_total_tokens(request, limits.max_model_len) - 1
    num_needed = max_held_blocks(
        limits.kv_cache_groups, num_slots, limits.block_size, limits.max_step_tokens
    )
    if num_needed > limits.num_usable_blocks:
        raise InvalidRequestError(
            f"the request may need {num_needed} KV blocks at a time, the pool has"
            f" {limits.num_usable_blocks}; ask for fewer tokens, or start the engine with more KV"
            " cache (--kv-cache-memory-bytes, --num-gpu-blocks-override)",
            reason="EXCEEDS_KV_CACHE",
            field="max_tokens",
        )


def _check_num_logprobs(request: EngineCoreRequest, limits: SchedulerLimits) -> None:
    params = request.sampling_params
    for field, num_top in (
        ("logprobs", params.logprobs),
        ("prompt_logprobs", params.prompt_logprobs),
    ):
        if num_top is not None and num_top > limits.max_logprobs:
            raise InvalidRequestError(
                f"{field} {num_top}: at most {limits.max_logprobs} may be asked for"
                " (--max-logprobs)",
                reason="TOO_MANY_LOGPROBS",
                field=field,
            )


def _check_prompt_logprobs(request: EngineCoreRequest) -> None:
    num_top = request.sampling_params.prompt_logprobs
    if num_top is None:
        return
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens * (num_top + 1) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequestError(
            f"prompt_logprobs {num_top} of {num_prompt_tokens} prompt tokens are more than"
            f" {MAX_PROMPT_LOGPROBS} log-probabilities: ask for fewer, or send a shorter prompt",
            reason="TOO_MANY_PROMPT_LOGPROBS",
            field="prompt_logprobs",
        )
