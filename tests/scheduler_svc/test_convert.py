import pytest

from pagewire.kit.errors import InvalidRequestError, QueueFullError
from pagewire.v1 import common_pb2, scheduler_pb2
from scheduler_svc import convert
from scheduler_svc.convert import PendingOutputs
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.output import (
    EngineCoreOutputs,
    FinishedRequest,
    LogprobRows,
    ScheduledRequest,
    StepTimings,
)
from scheduler_svc.stop import FinishReason

HANDLES = {"a": 1, "b": 2}


def logprobs(value):
    return LogprobRows([value], [1], [2], [5, 6], [value, value - 1])


def test_an_add_keeps_prompt_and_output_apart():
    request = convert.core_request(
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
        convert.core_request(scheduler_pb2.EngineAdd(prompt_token_ids=[1]), 0)


def test_an_error_carries_code_reason_and_retry():
    message = convert.request_error(3, QueueFullError("full", retry_after_s=1.5, field="x"))
    assert (message.handle, message.code, message.reason) == (3, 8, "QUEUE_FULL")
    assert (message.retry_after_ms, message.field) == (1500, "x")


def test_only_a_stop_string_counts_as_a_stop():
    reasons = {
        name: convert.abort_stop(value).reason for name, value in common_pb2.AbortReason.items()
    }
    stops = {name for name, reason in reasons.items() if reason is FinishReason.STOP}
    assert stops == {"ABORT_REASON_STOP_STRING"}


def test_every_finish_reason_has_a_wire_value():
    for reason in FinishReason:
        end = FinishedRequest("a", reason, 1, 1, 0)
        assert convert.generate_response(DirectOutput(end=end)).finish_reason != 0


def test_one_step_is_one_set_of_columns():
    pending = PendingOutputs()
    outputs = EngineCoreOutputs(4, ["a", "b"], [[7], [8, 9]])
    outputs.scheduled = [ScheduledRequest("a", 10, 3, 0.5)]
    pending.add_step(outputs, StepTimings(1, 2, 3, 4, 5), HANDLES)
    pending.add_finished(2, FinishedRequest("b", FinishReason.STOP, 1, 2, 0, stop_token_id=9))
    message = pending.to_proto()
    assert (list(message.handles), list(message.token_counts)) == ([1, 2], [1, 2])
    assert list(message.token_ids) == [7, 8, 9]
    assert (list(message.finished_handles), list(message.stop_token_ids_plus_one)) == ([2], [10])
    assert list(message.scheduled_handles) == [1]
    assert (list(message.num_cached_tokens), list(message.queue_ns)) == ([3], [500_000_000])
    assert (message.first_step, message.last_step) == (4, 4)
    assert message.timings.idle_ns == 5


def test_merged_steps_have_one_row_a_request():
    pending = PendingOutputs()
    pending.add_step(EngineCoreOutputs(4, ["a", "b"], [[1], [2]]), StepTimings(1), HANDLES)
    pending.add_step(EngineCoreOutputs(5, ["b", "a"], [[3], [4]]), StepTimings(2), HANDLES)
    message = pending.to_proto()
    assert list(message.handles) == [1, 2]
    assert list(message.token_counts) == [2, 2]
    assert list(message.token_ids) == [1, 4, 2, 3]
    assert (message.first_step, message.last_step, message.timings.schedule_ns) == (4, 5, 3)
    assert pending.num_tokens == 4


def test_what_requests_go_through_before_a_token_counts_too():
    pending, moves = PendingOutputs(), EngineCoreOutputs(1)
    moves.prefilled, moves.preempted = [("a", 8), ("b", 8)], ["a"]
    pending.add_step(moves, StepTimings(), HANDLES)
    assert pending.num_tokens == 3


def test_merging_leaves_the_engines_own_lists_alone():
    pending, first = PendingOutputs(), [1]
    pending.add_step(EngineCoreOutputs(1, ["a"], [first]), StepTimings(), HANDLES)
    pending.add_step(EngineCoreOutputs(2, ["a"], [[2]]), StepTimings(), HANDLES)
    assert first == [1]


def test_logprobs_follow_their_rows():
    pending = PendingOutputs()
    first = EngineCoreOutputs(1, ["a", "b"], [[1], [2]], {1: logprobs(-1.0)})
    pending.add_step(first, StepTimings(), HANDLES)
    second = EngineCoreOutputs(2, ["b"], [[3]], {0: logprobs(-2.0)})
    pending.add_step(second, StepTimings(), HANDLES)
    message = pending.to_proto()
    assert list(message.logprob_handles) == [2]
    assert list(message.logprobs.logprobs) == [-1.0, -2.0]
    assert list(message.logprobs.top_counts) == [2, 2]
    assert list(message.logprobs.top_token_ids) == [5, 6, 5, 6]


def test_rows_of_requests_that_have_ended_for_the_gateway_are_left_out():
    pending = PendingOutputs()
    pending.add_step(EngineCoreOutputs(1, ["gone"], [[1]]), StepTimings(), HANDLES)
    assert not pending
