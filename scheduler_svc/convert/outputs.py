"""Outputs of requests as messages: to direct clients, and the parts that gateways' frames share."""

from __future__ import annotations

from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.client_output import FinishedRequest
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason

FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}


def generate_response(output: DirectOutput) -> scheduler_pb2.SchedulerServiceGenerateResponse:
    """Build one message to a direct client; the last one has the end and the usage."""
    message = scheduler_pb2.SchedulerServiceGenerateResponse(token_ids=output.token_ids)
    if output.logprobs is not None:
        add_logprobs(message.logprobs, output.logprobs)
    if output.prompt_logprobs is not None:
        # Present, though a prompt of one token has no rows.
        message.prompt_logprobs.SetInParent()
        add_logprobs(message.prompt_logprobs, output.prompt_logprobs)
    end = output.end
    if end is not None:
        message.finish_reason = FINISH_REASONS[end.reason]
        stop_token_id = stop_token_of(end)
        if stop_token_id is not None:
            message.stop_token_id = stop_token_id
        message.usage.prompt_tokens = end.num_prompt_tokens
        message.usage.completion_tokens = end.num_output_tokens
        message.usage.cached_tokens = end.num_cached_tokens
    return message


def end_attributes(end: FinishedRequest) -> dict[str, str | int | float | bool]:
    """Return what a span says of the end of a request, under vLLM's names where it has any."""
    return {
        "gen_ai.usage.prompt_tokens": end.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": end.num_output_tokens,
        "cached_tokens": end.num_cached_tokens,
        "finish_reason": end.reason.value,
    }


def stop_token_of(end: FinishedRequest) -> int | None:
    return end.stop_token_id if end.eos_token_id is None else end.eos_token_id


def add_logprobs(columns: common_pb2.LogprobColumns, rows: LogprobRows) -> None:
    columns.logprobs.extend(rows.logprobs)
    columns.ranks.extend(rows.ranks)
    columns.top_counts.extend(rows.top_counts)
    columns.top_token_ids.extend(rows.top_token_ids)
    columns.top_logprobs.extend(rows.top_logprobs)


def set_timings(message: scheduler_pb2.StepTimings, timings: StepTimings, since_ns: int) -> None:
    message.schedule_ns = timings.schedule_ns
    message.execute_ns = timings.execute_ns
    message.forward_ns = timings.forward_ns
    message.sample_ns = timings.sample_ns
    message.idle_ns = timings.idle_ns
    message.prepare_ns = timings.prepare_ns
    message.queue_ns = timings.queue_ns
    message.busy_ns = timings.busy_ns
    if since_ns and timings.answered_ns:
        message.elapsed_ns = timings.answered_ns - since_ns
