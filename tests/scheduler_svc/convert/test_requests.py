"""What callers ask for, as the engine's own types."""

import pytest

from pagewire.kit.errors import InvalidRequestError, QueueFullError
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc.convert.requests import abort_stop, core_request, request_error
from scheduler_svc.stop import FinishReason


def test_an_add_keeps_prompt_and_output_apart():
    request = core_request(
        scheduler_pb2.EngineAdd(
            request_id="r",
            prompt_token_ids=[1, 2],
            output_token_ids=[3],
            resumed=True,
            arrival_time_ns=2_500_000_000,
            cache_salt="s",
            suspicions=2,
        ),
        client_id=9,
    )
    assert (request.prompt_token_ids, request.output_token_ids) == ([1, 2], [3])
    assert (request.is_resumed, request.arrival_time_s, request.cache_salt) == (True, 2.5, "s")
    assert (request.client_id, request.num_suspicions, request.lora_digest) == (9, 2, None)


def test_an_add_without_an_id_is_refused():
    with pytest.raises(InvalidRequestError):
        core_request(scheduler_pb2.EngineAdd(prompt_token_ids=[1]), 0)


def test_an_error_carries_code_reason_and_retry():
    message = request_error(3, QueueFullError("full", retry_after_s=1.5, field="x"))
    assert (message.handle, message.code, message.reason) == (3, 8, "QUEUE_FULL")
    assert (message.retry_after_ms, message.field) == (1500, "x")


def test_only_a_stop_string_counts_as_a_stop():
    reasons = {name: abort_stop(value).reason for name, value in common_pb2.AbortReason.items()}
    stops = {name for name, reason in reasons.items() if reason is FinishReason.STOP}
    assert stops == {"ABORT_REASON_STOP_STRING"}
