from dataclasses import replace

import pytest

from pagewire.v1 import common_pb2, worker_pb2
from scheduler_svc.drafter import NgramDrafter
from scheduler_svc.kv_cache_groups import KvCacheGroupSpec
from scheduler_svc.output import RowError
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.worker_messages import StepEncoder, decode_facts, decode_output, encode_masks
from tests.scheduler_svc.factories import add, make_limits, make_scheduler, step


def test_a_new_request_travels_in_full_under_a_fresh_handle():
    scheduler, encoder = make_scheduler(), StepEncoder()
    add(scheduler, [1, 2, 3, 4, 5], request_id="a", lora_digest="d")
    message = encoder.encode(step(scheduler)[0])
    (new,) = message.new_requests
    assert (new.handle, new.request_id, new.lora_digest) == (1, "a", "d")
    assert (list(new.prompt_token_ids), list(new.block_ids)) == ([1, 2, 3, 4, 5], [1, 2])
    assert (list(message.handles), list(message.num_scheduled_tokens)) == ([1], [5])
    assert (list(message.new_block_counts), list(message.new_block_ids)) == ([0], [])


def test_a_known_request_is_a_handle_and_its_new_blocks():
    scheduler, encoder = make_scheduler(), StepEncoder()
    add(scheduler, 4)
    encoder.encode(step(scheduler)[0])
    message = encoder.encode(step(scheduler)[0])
    assert not message.new_requests
    assert (list(message.handles), list(message.num_scheduled_tokens)) == ([1], [1])
    assert (list(message.new_block_counts), list(message.new_block_ids)) == ([1], [2])


def test_block_tables_travel_one_group_after_another():
    groups = (KvCacheGroupSpec(2), KvCacheGroupSpec(2, 5))
    scheduler, encoder = make_scheduler(kv_cache_groups=groups), StepEncoder(num_groups=2)
    add(scheduler, [1, 2, 3, 4, 5, 6, 7])
    message = encoder.encode(step(scheduler)[0])
    (new,) = message.new_requests
    assert (list(new.block_ids), list(new.block_counts)) == ([1, 2, 3, 4], [2, 2])
    assert list(message.new_block_counts) == [0, 0]
    encoder.encode(step(scheduler)[0])
    add(scheduler, [8])
    message = encoder.encode(step(scheduler)[0])
    assert (list(message.new_block_counts), list(message.new_block_ids)) == ([1, 1, 0, 0], [5, 6])
    assert list(message.new_requests[0].block_counts) == [1, 1]


def test_the_workers_groups_are_read_and_none_is_one_of_all_layers():
    result = worker_pb2.InitializeResult(model_info=common_pb2.ModelInfo(num_layers=3))
    assert decode_facts(result).kv_cache_groups == (KvCacheGroupSpec(3),)
    result.kv_cache_groups.add(num_layers=1)
    result.kv_cache_groups.add(num_layers=2, sliding_window=8)
    assert decode_facts(result).kv_cache_groups == (KvCacheGroupSpec(1), KvCacheGroupSpec(2, 8))


def test_an_id_that_ended_can_come_again_in_the_same_step():
    scheduler, encoder = make_scheduler(), StepEncoder()
    add(scheduler, 4, request_id="a")
    encoder.encode(step(scheduler)[0])
    scheduler.finish_requests(["a"])
    add(scheduler, 4, request_id="a")
    message = encoder.encode(step(scheduler)[0])
    assert list(message.finished_handles) == [1]
    assert [new.handle for new in message.new_requests] == [2]
    assert list(message.handles) == [2]


def test_a_preempted_request_comes_back_under_a_new_handle():
    scheduler, encoder = make_scheduler(), StepEncoder()
    add(scheduler, 4)
    encoder.encode(step(scheduler)[0])
    scheduler.preempt_all()
    message = encoder.encode(step(scheduler)[0])
    assert list(message.preempted_handles) == [1]
    assert [new.handle for new in message.new_requests] == [2]
    assert list(message.new_requests[0].output_token_ids) == [1]


def encoded(handles):
    return worker_pb2.SchedulerOutput(step=3, handles=handles)


def test_an_answer_is_split_into_rows():
    message = worker_pb2.ModelRunnerOutput(
        step=3,
        sampled_counts=[1, 0, 2],
        sampled_token_ids=[7, 8, 9],
        failed_handles=[6],
        failed_reasons=["NAN_LOGITS"],
        failed_messages=["no number"],
        timings=worker_pb2.WorkerTimings(forward_ns=5, sample_ns=6, idle_ns=7),
    )
    asked = encoded([5, 6, 7])
    asked.draft_counts.extend([0, 0, 1])
    result = decode_output(message, asked, 9)
    assert [list(token_ids) for token_ids in result.sampled_token_ids] == [[7], [], [8, 9]]
    assert result.errors == {1: RowError("NAN_LOGITS", "no number")}
    assert (result.forward_ns, result.sample_ns, result.idle_ns) == (5, 6, 7)


@pytest.mark.parametrize("draft_counts", [[], [0, 1]])
def test_more_tokens_than_drafts_and_one_are_an_error(draft_counts):
    message = worker_pb2.ModelRunnerOutput(
        step=3, sampled_counts=[2, 1], sampled_token_ids=[7, 8, 9]
    )
    asked = encoded([5, 6])
    asked.draft_counts.extend(draft_counts)
    with pytest.raises(ValueError, match="more tokens than its drafts"):
        decode_output(message, asked, 9)


def test_drafts_are_columns():
    scheduler = Scheduler(make_limits(), drafter=NgramDrafter(3, 1, 2))
    encoder = StepEncoder()
    add(scheduler, [5, 6, 7, 8])
    add(scheduler, [1, 2, 3, 1, 2, 3])
    encoder.encode(step(scheduler, lambda request: 1)[0])
    message = encoder.encode(scheduler.schedule(0.0))
    assert list(message.num_scheduled_tokens) == [1, 4]
    assert list(message.draft_counts) == [0, 3]
    assert list(message.draft_token_ids) == [2, 3, 1]


def test_masks_name_a_row_once_and_once_more_a_draft():
    scheduler = make_scheduler()
    for request_id in ("a", "b", "c"):
        add(scheduler, 4, request_id=request_id)
    output = scheduler.schedule(0.0)
    message = StepEncoder().encode(output)
    output = replace(output, masked_rows=[0, 2], drafts={"c": [1, 2]})
    masks = encode_masks({0: b"\x01\x02", 2: b"\x03\x04" * 3}, output, message)
    assert masks.step == message.step
    assert list(masks.handles) == [1, 3, 3, 3]
    assert masks.bitmasks == b"\x01\x02" + b"\x03\x04" * 3


def test_an_answer_to_another_step_is_an_error():
    with pytest.raises(ValueError, match="step 4 was answered"):
        decode_output(worker_pb2.ModelRunnerOutput(step=4), encoded([]), 9)


def test_steps_count_within_the_stream():
    scheduler = make_scheduler()
    add(scheduler, 4)
    assert StepEncoder().encode(step(scheduler)[0]).step == 1
    encoder = StepEncoder()
    scheduler.preempt_all()
    assert [encoder.encode(step(scheduler)[0]).step for _ in range(2)] == [1, 2]


def test_logprobs_are_split_by_row():
    message = worker_pb2.ModelRunnerOutput(
        step=3,
        sampled_counts=[1, 1, 1],
        sampled_token_ids=[7, 8, 9],
        logprob_handles=[5, 7],
        logprobs=common_pb2.LogprobColumns(
            logprobs=[-1.0, -2.0],
            ranks=[1, 4],
            top_counts=[2, 1],
            top_token_ids=[7, 1, 3],
            top_logprobs=[-1.0, -3.0, -0.5],
        ),
    )
    logprobs = decode_output(message, encoded([5, 6, 7]), 9).logprobs
    assert sorted(logprobs) == [0, 2]
    assert list(logprobs[0].top_token_ids) == [7, 1]
    assert (list(logprobs[2].ranks), list(logprobs[2].top_token_ids)) == ([4], [3])


@pytest.mark.parametrize(
    ("counts", "token_ids"), [([1], [1]), ([1, 1], [1]), ([1, 1, 1], [1, 2, 3])]
)
def test_an_answer_that_does_not_fit_its_step_is_an_error(counts, token_ids):
    message = worker_pb2.ModelRunnerOutput(
        step=3, sampled_counts=counts, sampled_token_ids=token_ids
    )
    with pytest.raises(ValueError, match=r"rows|disagree"):
        decode_output(message, encoded([1, 2]), 9)
