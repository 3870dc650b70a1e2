"""Prompt logprobs come once, with the first token, whatever happens to the request."""

from __future__ import annotations

import pytest

from pagewire.kit.errors import InvalidRequestError
from pagewire.v1 import common_pb2, worker_pb2
from scheduler_svc.admission import MAX_PROMPT_LOGPROBS, check_request
from scheduler_svc.client_output import EngineCoreOutputs
from scheduler_svc.convert.outputs import generate_response
from scheduler_svc.convert.pending_outputs import PendingOutputs
from scheduler_svc.direct_client import DirectOutput
from scheduler_svc.logprob_rows import LogprobRows
from scheduler_svc.output import ModelRunnerOutput
from scheduler_svc.step_figures import StepTimings
from scheduler_svc.worker_messages import decode_output
from tests.scheduler_svc.factories import add, make_core_request, make_limits, make_scheduler

PROMPT = LogprobRows([-1.0, float("-inf")], [1, 9], [1, 0], [5], [-0.5])


def answer(scheduler, output):
    """Every row that draws gets a token; the worker gives prompt logprobs each time."""
    result = ModelRunnerOutput(
        step=output.step,
        sampled_token_ids=[[1] if draws else [] for draws in output.draws],
        prompt_logprobs={row: PROMPT for row, draws in enumerate(output.draws) if draws},
    )
    [client] = scheduler.update_from_output(output, result).values()
    return client


def test_they_come_with_the_first_token_and_never_again():
    scheduler = make_scheduler(max_num_batched_tokens=8)
    request = add(scheduler, 10, prompt_logprobs=1, max_tokens=4)
    chunk, last_chunk = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert (chunk.draws, last_chunk.draws) == ([False], [True])
    assert answer(scheduler, chunk).prompt_logprobs == {}
    assert answer(scheduler, last_chunk).prompt_logprobs == {0: PROMPT}
    scheduler.preempt_all()
    resumed = scheduler.schedule(0.0)
    assert [new.output_token_ids for new in resumed.scheduled_new_reqs] == [[1]]
    # Its first chunk draws nothing.
    scheduler.update_from_output(resumed, ModelRunnerOutput(resumed.step, [[]]))
    assert answer(scheduler, scheduler.schedule(0.0)).prompt_logprobs == {}
    assert request.num_output_tokens == 2


def test_a_first_token_that_was_dropped_brings_them_again():
    scheduler = make_scheduler()
    add(scheduler, 10, prompt_logprobs=1)
    lost = scheduler.schedule(0.0)
    scheduler.take_back_steps([lost])
    assert answer(scheduler, scheduler.schedule(0.0)).prompt_logprobs == {0: PROMPT}


def test_more_than_a_message_holds_are_refused():
    limits = make_limits(max_model_len=MAX_PROMPT_LOGPROBS, num_blocks=MAX_PROMPT_LOGPROBS)
    length = MAX_PROMPT_LOGPROBS // 21
    check_request(make_core_request(length, prompt_logprobs=20, max_tokens=1), limits)
    with pytest.raises(InvalidRequestError, match="ask for fewer") as caught:
        check_request(make_core_request(length + 1, prompt_logprobs=20, max_tokens=1), limits)
    assert caught.value.field == "prompt_logprobs"


def worker_answer(counts=(2, 0)):
    """Of the rows 7 and 8, of which both asked."""
    return worker_pb2.ModelRunnerOutput(
        step=1,
        sampled_counts=[1, 1],
        sampled_token_ids=[3, 4],
        prompt_logprob_handles=[7, 8],
        prompt_logprob_counts=counts,
        prompt_logprobs=columns_of(PROMPT),
    )


def columns_of(rows):
    return common_pb2.LogprobColumns(
        logprobs=rows.logprobs,
        ranks=rows.ranks,
        top_counts=rows.top_counts,
        top_token_ids=rows.top_token_ids,
        top_logprobs=rows.top_logprobs,
    )


def test_the_workers_columns_are_split_by_row():
    step = worker_pb2.SchedulerOutput(step=1, handles=[7, 8])
    output = decode_output(worker_answer(), step, engine_step=5)
    assert output.prompt_logprobs == {0: PROMPT, 1: LogprobRows([], [], [], [], [])}


def test_counts_that_do_not_fit_are_an_error():
    step = worker_pb2.SchedulerOutput(step=1, handles=[7, 8])
    with pytest.raises(ValueError, match="disagree"):
        decode_output(worker_answer((2, 1)), step, engine_step=5)


def test_they_go_to_gateways_beside_their_request():
    pending = PendingOutputs()
    outputs = EngineCoreOutputs(1, ["a", "b"], [[3], [4]], prompt_logprobs={1: PROMPT})
    pending.add_step(outputs, StepTimings(), {"a": 1, "b": 2})
    pending.add_step(EngineCoreOutputs(2, ["b"], [[5]]), StepTimings(), {"a": 1, "b": 2})
    message = pending.to_proto()
    assert list(message.prompt_logprob_handles) == [2]
    assert list(message.prompt_logprob_counts) == [2]
    assert message.prompt_logprobs == columns_of(PROMPT)


def test_they_go_to_direct_clients():
    message = generate_response(DirectOutput([1], PROMPT, PROMPT))
    assert message.logprobs == message.prompt_logprobs == columns_of(PROMPT)
    none = LogprobRows([], [], [], [], [])
    assert generate_response(DirectOutput([1], None, none)).HasField("prompt_logprobs")
    assert not generate_response(DirectOutput([1])).HasField("prompt_logprobs")
