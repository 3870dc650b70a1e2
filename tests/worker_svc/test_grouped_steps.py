"""What the worker checks of steps for a model with several KV cache groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.worker_svc.harness import ScriptedRunner
from tests.worker_svc.test_step_executor import LIMITS, NEW
from worker_svc.step import SchedulerOutput
from worker_svc.step_executor import StepDone, StepExecutor, StepFailure

GROUPED = replace(NEW, block_ids=[1, 2, 3, 4], block_counts=[2, 2])
GROUPED_FIRST = SchedulerOutput(1, [GROUPED], [1], [3])


@pytest.fixture
def grouped() -> StepExecutor:
    return StepExecutor(ScriptedRunner(), replace(LIMITS, num_groups=2), lambda: 0)


def test_every_group_grows_by_its_own_count(grouped: StepExecutor) -> None:
    long = replace(GROUPED, prompt_token_ids=[1] * 12)
    assert isinstance(grouped.execute(SchedulerOutput(1, [long], [1], [8])), StepDone)
    step = SchedulerOutput(2, [], [1], [4], [1, 1], [5, 6])
    assert isinstance(grouped.execute(step), StepDone)


@pytest.mark.parametrize("counts", [[1, 0], [0, 1]])
def test_every_group_must_hold_the_tokens(grouped: StepExecutor, counts: list[int]) -> None:
    long = replace(GROUPED, prompt_token_ids=[1] * 12)
    assert isinstance(grouped.execute(SchedulerOutput(1, [long], [1], [8])), StepDone)
    outcome = grouped.execute(SchedulerOutput(2, [], [1], [4], counts, [5]))
    assert isinstance(outcome, StepFailure)
    assert "2 blocks cannot hold 12 tokens" in outcome.message


@pytest.mark.parametrize(
    "step",
    [
        replace(GROUPED_FIRST, new_requests=[replace(GROUPED, block_counts=[])]),
        replace(GROUPED_FIRST, new_requests=[replace(GROUPED, block_counts=[4])]),
        replace(GROUPED_FIRST, new_requests=[replace(GROUPED, block_counts=[2, 1])]),
        replace(GROUPED_FIRST, new_requests=[replace(GROUPED, block_counts=[2, 2, 0])]),
        replace(GROUPED_FIRST, new_block_counts=[0]),
        replace(GROUPED_FIRST, new_block_counts=[1, 1], new_block_ids=[5]),
    ],
)
def test_block_counts_that_do_not_fit_the_groups_fail_the_step(
    grouped: StepExecutor, step: SchedulerOutput
) -> None:
    outcome = grouped.execute(step)
    assert isinstance(outcome, StepFailure)
    assert outcome.reason == "INVALID_STEP"
    assert grouped.num_requests == 0


def test_a_table_for_each_group_is_refused_where_there_is_one() -> None:
    executor = StepExecutor(ScriptedRunner(), LIMITS, lambda: 0)
    assert isinstance(executor.execute(GROUPED_FIRST), StepFailure)
