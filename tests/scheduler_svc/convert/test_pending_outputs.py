"""Outputs that wait for a gateway, and the columns that they become."""

from scheduler_svc.client_output import EngineCoreOutputs, FinishedRequest, ScheduledRequest
from scheduler_svc.convert.pending_outputs import PendingOutputs
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.stop import FinishReason

HANDLES = {"a": 1, "b": 2}


def logprobs(value):
    return LogprobRows([value], [1], [2], [5, 6], [value, value - 1])


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


def values_of(outputs):
    pending = PendingOutputs()
    pending.add_step(outputs, StepTimings(), HANDLES)
    return pending.num_values


def test_every_token_counts_and_a_row_counts_once():
    one, two = EngineCoreOutputs(1, ["a"], [[1]]), EngineCoreOutputs(2, ["a"], [[2, 3]])
    pending = PendingOutputs()
    pending.add_step(one, StepTimings(), HANDLES)
    pending.add_step(two, StepTimings(), HANDLES)
    assert pending.num_values == values_of(one) + 2


def test_logprobs_count_with_all_their_candidates():
    plain = values_of(EngineCoreOutputs(1, ["a"], [[1]]))
    rows = LogprobRows([-1.0], [1], [20], list(range(20)), [-1.0] * 20)
    assert values_of(EngineCoreOutputs(1, ["a"], [[1]], {0: rows})) == plain + 43
    prompt = EngineCoreOutputs(1, ["a"], [[1]], prompt_logprobs={0: rows})
    assert values_of(prompt) >= plain + 43


def test_what_requests_go_through_before_a_token_counts_too():
    moves = EngineCoreOutputs(1)
    moves.prefilled, moves.preempted = [("a", 8), ("b", 8)], ["a"]
    assert values_of(moves) == 5
    moves.scheduled = [ScheduledRequest("a", 10, 3, 0.5)]
    assert values_of(moves) > 5


def test_the_end_of_a_request_counts():
    pending = PendingOutputs()
    pending.add_finished(1, FinishedRequest("a", FinishReason.STOP, 1, 2, 0))
    assert pending.num_values > 0


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
