from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pagewire.sampling_params import SamplingParams
from worker_svc.input_batch import (
    PADDING_SLOT,
    InputBatch,
    StepError,
    _tokens_of_any_rows,
    _tokens_of_single_rows,
)
from worker_svc.step import NewRequest, SchedulerOutput

BLOCK_SIZE = 4


def make_new(handle: int, num_prompt: int, block_ids: list[int], **fields: Any) -> NewRequest:
    values: dict[str, Any] = {
        "request_id": f"request-{handle}",
        "prompt_token_ids": [100 * handle + i for i in range(num_prompt)],
        "output_token_ids": [],
        "sampling": SamplingParams(seed=handle),
        "num_computed_tokens": 0,
    }
    return NewRequest(handle=handle, block_ids=block_ids, **(values | fields))


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(BLOCK_SIZE, max_model_len=64)


def test_slots_follow_the_block_table(batch: InputBatch) -> None:
    rows = batch.update(SchedulerOutput(1, [make_new(1, 6, [7, 3])], [1], [6]))
    inputs = batch.make_inputs(rows)
    assert inputs.token_ids.tolist() == [100, 101, 102, 103, 104, 105]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.slot_mapping.tolist() == [28, 29, 30, 31, 12, 13]
    assert inputs.block_tables.tolist() == [[7, 3]]
    assert (inputs.query_start_loc, inputs.seq_lens) == ([0, 6], [6])


def test_a_chunk_starts_where_the_last_one_ended(batch: InputBatch) -> None:
    batch.advance(batch.update(SchedulerOutput(1, [make_new(1, 6, [7])], [1], [4])))
    rows = batch.update(SchedulerOutput(2, (), [1], [2], new_block_counts=[1], new_block_ids=[3]))
    inputs = batch.make_inputs(rows)
    assert inputs.token_ids.tolist() == [104, 105]
    assert inputs.slot_mapping.tolist() == [12, 13]
    assert [row.samples for row in rows] == [True]


def test_a_prefix_hit_skips_what_is_computed(batch: InputBatch) -> None:
    new = make_new(1, 6, [7, 3], num_computed_tokens=4)
    inputs = batch.make_inputs(batch.update(SchedulerOutput(1, [new], [1], [2])))
    assert inputs.positions.tolist() == [4, 5]


def test_the_tables_of_a_request_are_made_once_for_all_its_steps(batch: InputBatch) -> None:
    sampling = SamplingParams(logit_bias=((3, 1.5),), allowed_token_ids=(3, 4))
    [row] = batch.update(SchedulerOutput(1, [make_new(1, 2, [5], sampling=sampling)], [1], [2]))
    [before] = batch.sampling.gather([row.state.slot]).processed
    batch.sampling.append([row.state.slot], [[3]])
    [after] = batch.sampling.gather([row.state.slot]).processed
    assert after.tables is before.tables
    assert after.tables.biased is not None and after.tables.biased.tolist() == [3]


def test_the_slot_of_a_request_that_ended_is_used_again(batch: InputBatch) -> None:
    sampling = SamplingParams(temperature=0.5, min_tokens=3)
    [row] = batch.update(SchedulerOutput(1, [make_new(1, 2, [5], sampling=sampling)], [1], [2]))
    new = make_new(2, 2, [6], sampling=SamplingParams(temperature=0.0))
    [other] = batch.update(SchedulerOutput(2, [new], [2], [2], finished_handles=[1]))
    assert other.state.slot == row.state.slot
    places = batch.sampling.gather([other.state.slot])
    assert (places.needs.tolist(), places.processed) == ([0], ())


def test_a_resumed_request_prefills_its_outputs_too(batch: InputBatch) -> None:
    new = make_new(1, 2, [5], output_token_ids=[8, 9])
    [row] = batch.update(SchedulerOutput(1, [new], [1], [4]))
    assert batch.make_inputs([row]).token_ids.tolist() == [100, 101, 8, 9]
    assert batch.sampling.gather([row.state.slot]).output_indices.tolist() == [2]


def test_single_tokens_come_first_and_the_longest_of_them_before_the_others(
    batch: InputBatch,
) -> None:
    new = [
        make_new(1, 5, [1, 2]),
        make_new(2, 3, [3], num_computed_tokens=2),
        make_new(3, 8, [4, 5], num_computed_tokens=7),
    ]
    inputs = batch.make_inputs(batch.update(SchedulerOutput(1, new, [1, 2, 3], [5, 1, 1])))
    assert [row.state.handle for row in inputs.rows] == [3, 2, 1]
    assert inputs.num_single_rows == 2
    assert inputs.seq_lens == [8, 3, 5]
    assert inputs.block_tables.tolist() == [[4, 5], [3, 0], [1, 2]]


def test_padding_has_no_slot(batch: InputBatch) -> None:
    rows = batch.update(SchedulerOutput(1, [make_new(1, 2, [6])], [1], [2]))
    inputs = batch.make_inputs(rows, min_tokens=4)
    assert inputs.token_ids.tolist() == [100, 101, 0, 0]
    assert inputs.slot_mapping.tolist() == [24, 25, -1, -1]
    assert inputs.query_start_loc == [0, 2]


def test_a_request_that_is_not_scheduled_keeps_its_state(batch: InputBatch) -> None:
    batch.advance(batch.update(SchedulerOutput(1, [make_new(1, 6, [7, 3])], [1], [4])))
    batch.update(SchedulerOutput(2, [make_new(2, 2, [4])], [2], [2]))
    rows = batch.update(SchedulerOutput(3, (), [1], [2]))
    assert batch.make_inputs(rows).positions.tolist() == [4, 5]


def test_finished_and_preempted_requests_are_dropped(batch: InputBatch) -> None:
    new = [make_new(1, 2, [1]), make_new(2, 2, [2])]
    batch.update(SchedulerOutput(1, new, [1, 2], [2, 2]))
    batch.update(SchedulerOutput(2, finished_handles=[1, 99], preempted_handles=[2]))
    assert len(batch) == 0


def test_a_preempted_handle_may_come_back_in_the_same_step(batch: InputBatch) -> None:
    batch.advance(batch.update(SchedulerOutput(1, [make_new(1, 2, [1])], [1], [2])))
    again = make_new(1, 2, [9], output_token_ids=[5])
    rows = batch.update(SchedulerOutput(2, [again], [1], [3], preempted_handles=[1]))
    assert batch.make_inputs(rows).slot_mapping.tolist() == [36, 37, 38]


def test_without_a_seed_the_request_id_decides(batch: InputBatch) -> None:
    new = [
        make_new(1, 1, [1], sampling=SamplingParams(), request_id="a"),
        make_new(2, 1, [2], sampling=SamplingParams(), request_id="a"),
        make_new(3, 1, [3], sampling=SamplingParams(), request_id="b"),
    ]
    rows = batch.update(SchedulerOutput(1, new, [1, 2, 3], [1, 1, 1]))
    places = batch.sampling.gather([row.state.slot for row in rows])
    first, same, other = places.seeds.tolist()
    assert first == same != other


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (SchedulerOutput(2, (), [9], [1]), "handle 9 is not known"),
        (SchedulerOutput(2, [make_new(1, 2, [1])]), "handle 1 is new but already known"),
        (SchedulerOutput(2, [make_new(2, 2, [1, 2], block_counts=[1, 1])]), "2 block tables"),
        (SchedulerOutput(2, (), [1, 1], [1, 1]), "scheduled twice"),
        (SchedulerOutput(2, (), [1], [7]), "6 tokens, 0 computed, 7 scheduled"),
        (SchedulerOutput(2, (), [1], [0]), "0 scheduled"),
        (SchedulerOutput(2, (), [1], [6]), "reaches 6 tokens with 1 blocks of 4"),
        (SchedulerOutput(2, (), [1], [1], [0], [8]), "1 new block ids, counts say 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_that_does_not_fit_is_refused(
    batch: InputBatch, step: SchedulerOutput, problem: str
) -> None:
    batch.update(SchedulerOutput(1, [make_new(1, 6, [7])], [1], [4]))
    with pytest.raises(StepError, match=problem):
        batch.update(step)


def test_long_requests_grow_and_keep_their_tokens_and_blocks() -> None:
    batch = InputBatch(BLOCK_SIZE, max_model_len=4096)
    rng = random.Random(0)
    blocks = rng.sample(range(1, 5000), 1000)
    [row] = batch.update(SchedulerOutput(1, [make_new(1, 3, blocks[:1])], [1], [3]))
    batch.advance([row])
    for position in range(3, 2000):
        row.state.append_tokens([position])
        added = [blocks[position // BLOCK_SIZE]] if position % BLOCK_SIZE == 0 else []
        [row] = batch.update(SchedulerOutput(position, (), [1], [1], [len(added)], added))
        inputs = batch.make_inputs([row])
        expected = blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        assert inputs.slot_mapping.tolist() == [expected]
        batch.advance([row])
    assert row.state.token_ids[3:2000].tolist() == list(range(3, 2000))
    assert np.array_equal(row.state.block_ids[:500], blocks[:500])


def test_rows_of_one_token_are_like_any_others(batch: InputBatch) -> None:
    news = [make_new(1, 6, [7, 3]), make_new(2, 2, [5]), make_new(3, 9, [1, 2, 4])]
    batch.advance(batch.update(SchedulerOutput(1, news, [1, 2, 3], [5, 1, 8])))
    rows = batch.update(SchedulerOutput(2, (), [1, 2, 3], [1, 1, 1]))
    ordered = batch.make_inputs(rows).rows
    singles, others = _tokens_of_single_rows(ordered), _tokens_of_any_rows(ordered)
    for name in ("token_ids", "positions", "rows"):
        found, expected = getattr(singles, name), getattr(others, name)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    assert singles.query_start_loc == others.query_start_loc
    assert singles.num_single_rows == others.num_single_rows
    padded = batch.make_inputs(rows, min_tokens=5)
    assert padded.token_ids.tolist() == [308, 105, 201, 0, 0]
    assert padded.positions.tolist() == [8, 5, 1, 0, 0]
    assert padded.slot_mapping.tolist() == [16, 13, 21, PADDING_SLOT, PADDING_SLOT]
