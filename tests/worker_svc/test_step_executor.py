"""What the worker does with good, malformed and failing steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.harness import ScriptedRunner
from worker_svc.grammar_masks import MASKS_MISSING, GrammarMasks, MaskSource, no_masks
from worker_svc.step import NAN_LOGITS, FailedRow, ModelRunnerOutput, NewRequest, SchedulerOutput
from worker_svc.step_executor import StepDone, StepExecutor, StepFailure, StepLimits

LIMITS = StepLimits(
    num_blocks=10, block_size=4, max_model_len=16, vocab_size=100, max_num_batched_tokens=20
)
NEW = NewRequest(1, "r1", [1, 2, 3], [], SamplingParams(), 0, [1, 2])
FIRST = SchedulerOutput(1, [NEW], [1], [3])


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.fixture
def executor(runner: ScriptedRunner) -> StepExecutor:
    return StepExecutor(runner, LIMITS, lambda: 77)


def test_a_good_step_is_executed_and_carries_the_idle_time(executor: StepExecutor) -> None:
    outcome = executor.execute(FIRST)
    assert isinstance(outcome, StepDone)
    assert outcome.output.sampled_token_ids == [9]
    assert outcome.idle_ns == 77
    assert executor.num_requests == 1


def test_a_step_may_compute_the_token_that_the_step_before_draws(
    executor: StepExecutor, runner: ScriptedRunner
) -> None:
    # Its sender did not know the token; a scheduler sends such a step while the first one runs.
    steps = [FIRST, SchedulerOutput(2, [], [1], [1]), SchedulerOutput(3, [], [1], [1])]
    assert all(isinstance(executor.execute(step), StepDone) for step in steps)
    too_far = executor.execute(SchedulerOutput(4, [], [1], [2]))
    assert isinstance(too_far, StepFailure)


MALFORMED = {
    "an unknown handle": replace(FIRST, handles=[2]),
    "columns of different length": replace(FIRST, num_scheduled_tokens=[3, 1]),
    "block counts of another length": replace(FIRST, new_block_counts=[1, 0]),
    "block ids that no count names": replace(FIRST, new_block_ids=[3]),
    "a handle twice": replace(FIRST, handles=[1, 1], num_scheduled_tokens=[1, 1]),
    "a new request twice": replace(FIRST, new_requests=[NEW, NEW]),
    "no prompt": replace(FIRST, new_requests=[replace(NEW, prompt_token_ids=[])]),
    "a prompt past the limit": replace(
        FIRST, new_requests=[replace(NEW, prompt_token_ids=[1] * 17)]
    ),
    "a token outside the vocabulary": replace(
        FIRST, new_requests=[replace(NEW, prompt_token_ids=[1, 2, 100])]
    ),
    "an output token outside the vocabulary": replace(
        FIRST, new_requests=[replace(NEW, output_token_ids=[100])]
    ),
    "nothing to compute": replace(FIRST, new_requests=[replace(NEW, num_computed_tokens=3)]),
    "a block that is not there": replace(FIRST, new_requests=[replace(NEW, block_ids=[10])]),
    "a new block that is not there": replace(FIRST, new_block_counts=[1], new_block_ids=[10]),
    "no tokens scheduled": replace(FIRST, num_scheduled_tokens=[0]),
    "more tokens than are known": replace(FIRST, num_scheduled_tokens=[4]),
    "more tokens than blocks hold": replace(FIRST, new_requests=[replace(NEW, block_ids=[])]),
    "more tokens than a step may have": replace(FIRST, num_scheduled_tokens=[21]),
}


# A request of which two tokens are computed and the third is known, in two blocks of four.
DECODING = replace(NEW, num_computed_tokens=2)
DRAFTED = SchedulerOutput(
    1, [DECODING], [1], [4], draft_counts=[3], draft_token_ids=[5, 6, 7], masked_handles=[1]
)
MALFORMED |= {
    "draft counts of another length": replace(DRAFTED, draft_counts=[3, 0]),
    "draft ids that no count names": replace(DRAFTED, draft_counts=[2]),
    "draft counts without ids": replace(DRAFTED, draft_token_ids=[]),
    "a draft outside the vocabulary": replace(DRAFTED, draft_token_ids=[5, 6, 100]),
    "nothing but drafts": replace(DRAFTED, num_scheduled_tokens=[3]),
    "drafts behind a part of the prompt": replace(
        DRAFTED, new_requests=[NEW], num_scheduled_tokens=[5]
    ),
    "drafts past what is known": replace(DRAFTED, num_scheduled_tokens=[5]),
    "drafts past the blocks": replace(DRAFTED, new_requests=[replace(DECODING, block_ids=[1])]),
    "drafts past the length limit": replace(
        DRAFTED,
        new_requests=[replace(DECODING, block_ids=[1, 2, 3, 4, 5])],
        num_scheduled_tokens=[15],
        draft_counts=[14],
        draft_token_ids=[5] * 14,
    ),
    "more tokens with drafts than a step may have": replace(
        DRAFTED,
        new_requests=[replace(DECODING, block_ids=[1, 2, 3, 4, 5, 6])],
        num_scheduled_tokens=[21],
        draft_counts=[20],
        draft_token_ids=[5] * 20,
    ),
    "a masked handle that is not scheduled": replace(FIRST, masked_handles=[2]),
}


@pytest.mark.parametrize("step", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_step_fails_without_reaching_the_runner(
    executor: StepExecutor, runner: ScriptedRunner, step: SchedulerOutput
) -> None:
    outcome = executor.execute(step)
    assert isinstance(outcome, StepFailure)
    assert (outcome.step, outcome.reason) == (1, "INVALID_STEP")
    assert all(not seen.handles and not seen.new_requests for seen in runner.steps)
    assert executor.num_requests == 0


def test_a_failed_step_forgets_its_requests_and_no_others(
    executor: StepExecutor, runner: ScriptedRunner
) -> None:
    executor.execute(FIRST)
    executor.execute(SchedulerOutput(2, [replace(NEW, handle=2, block_ids=[3])], [2], [3]))
    runner.step_error = RuntimeError("secret detail")
    outcome = executor.execute(SchedulerOutput(3, handles=[1], num_scheduled_tokens=[1]))
    assert isinstance(outcome, StepFailure)
    assert outcome.reason == "STEP_RAISED"
    assert "secret" not in outcome.message
    assert runner.steps[-1].finished_handles == [1]
    runner.step_error = None
    alone = executor.execute(SchedulerOutput(4, handles=[2], num_scheduled_tokens=[1]))
    assert isinstance(alone, StepDone)


def test_a_step_sent_before_the_failure_was_known_fails_too(
    executor: StepExecutor, runner: ScriptedRunner
) -> None:
    runner.step_error = RuntimeError()
    executor.execute(FIRST)
    runner.step_error = None
    outcome = executor.execute(SchedulerOutput(2, handles=[1], num_scheduled_tokens=[1]))
    assert isinstance(outcome, StepFailure)
    assert outcome.reason == "INVALID_STEP"


def test_a_request_comes_back_after_a_failed_step(
    executor: StepExecutor, runner: ScriptedRunner
) -> None:
    runner.step_error = RuntimeError()
    executor.execute(FIRST)
    runner.step_error = None
    again = replace(FIRST, step=2, preempted_handles=[1])
    assert isinstance(executor.execute(again), StepDone)


def test_a_domain_error_keeps_its_reason(executor: StepExecutor, runner: ScriptedRunner) -> None:
    runner.step_error = InvalidRequestError("too long", reason="TOO_LONG")
    outcome = executor.execute(FIRST)
    assert outcome == StepFailure(1, "TOO_LONG", "too long")


def test_finished_handles_are_free_in_the_same_step(executor: StepExecutor) -> None:
    executor.execute(FIRST)
    outcome = executor.execute(replace(FIRST, step=2, finished_handles=[1]))
    assert isinstance(outcome, StepDone)


def test_sampled_tokens_can_be_scheduled_and_no_more(executor: StepExecutor) -> None:
    executor.execute(FIRST)
    assert isinstance(executor.execute(SchedulerOutput(2, (), [1], [1])), StepDone)
    assert isinstance(executor.execute(SchedulerOutput(3, (), [1], [2])), StepFailure)


class Accepts(ScriptedRunner):
    """Samples as many tokens as the test says, for each row."""

    num_sampled = 1

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        output = super().execute(scheduler_output, masks)
        num_rows = len(output.handles)
        tokens = [9] * self.num_sampled * num_rows
        return replace(output, num_sampled=[self.num_sampled] * num_rows, sampled_token_ids=tokens)


@pytest.mark.parametrize("num_sampled", [1, 2, 4])
def test_after_drafts_one_token_is_left_to_compute(num_sampled: int) -> None:
    runner = Accepts()
    executor = StepExecutor(runner, LIMITS, lambda: 0)
    runner.num_sampled = num_sampled
    drafted = replace(DRAFTED, masked_handles=())
    assert isinstance(executor.execute(drafted), StepDone)
    runner.num_sampled = 1
    for step in (2, 3):
        assert isinstance(executor.execute(SchedulerOutput(step, (), [1], [1])), StepDone)
    assert isinstance(executor.execute(SchedulerOutput(4, (), [1], [2])), StepFailure)


def masks_of(handles: list[int], row_bytes: int = 13) -> GrammarMasks:
    return GrammarMasks(1, handles, np.zeros((len(handles), row_bytes), dtype=np.uint8))


@pytest.mark.parametrize(
    ("reason", "is_ordinary"), [(MASKS_MISSING, True), ("SOMETHING_ELSE", False)]
)
def test_masks_that_a_stream_takes_along_are_one_line(
    executor: StepExecutor, caplog: pytest.LogCaptureFixture, reason: str, is_ordinary: bool
) -> None:
    def wait() -> GrammarMasks:
        raise ServiceUnavailableError("the stream ends", reason=reason)

    outcome = executor.execute(DRAFTED, wait)
    assert isinstance(outcome, StepFailure) and outcome.reason == reason
    (line,) = [r.msg for r in caplog.records if "step_failed" in str(r.msg)]
    assert ("exception" in line, line.get("problem")) == (
        (False, "the stream ends") if is_ordinary else (True, None)
    )


def test_masks_that_fit_reach_the_runner(executor: StepExecutor, runner: ScriptedRunner) -> None:
    masks = masks_of([1] * 4)
    assert isinstance(executor.execute(DRAFTED, lambda: masks), StepDone)
    assert runner.masks == [masks]


@pytest.mark.parametrize(
    "masks", [masks_of([1] * 3), masks_of([2]), masks_of([1] * 4, row_bytes=12)]
)
def test_masks_that_do_not_fit_fail_the_step(executor: StepExecutor, masks: GrammarMasks) -> None:
    outcome = executor.execute(DRAFTED, lambda: masks)
    assert isinstance(outcome, StepFailure)
    assert (outcome.reason, executor.num_requests) == ("INVALID_MASKS", 0)


def test_a_row_that_ended_while_its_mask_was_made_harms_no_later_step() -> None:
    runner = Accepts()
    executor = StepExecutor(runner, LIMITS, lambda: 0)
    both = [NEW, replace(NEW, handle=2, block_ids=[3])]
    runner.num_sampled = 0
    executor.execute(SchedulerOutput(1, both, [1, 2], [3, 3]))
    # Sent before its sender knew.
    assert isinstance(executor.execute(SchedulerOutput(2, (), [1, 2], [1, 1])), StepDone)


class OneRowFails(ScriptedRunner):
    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        output = super().execute(scheduler_output, masks)
        failed = [FailedRow(1, NAN_LOGITS)] if 1 in scheduler_output.handles else []
        counts = [0 if handle == 1 else 1 for handle in output.handles]
        return replace(
            output, num_sampled=counts, sampled_token_ids=[9] * sum(counts), failed=failed
        )


def test_a_row_that_failed_does_not_fail_the_steps_of_others() -> None:
    executor = StepExecutor(OneRowFails(), LIMITS, lambda: 0)
    both = [NEW, replace(NEW, handle=2, block_ids=[3])]
    executor.execute(SchedulerOutput(1, both, [1, 2], [3, 3]))
    outcome = executor.execute(SchedulerOutput(2, (), [1, 2], [1, 1]))
    assert isinstance(outcome, StepDone)
    assert outcome.output.num_sampled == [0, 1]


class Shuffles(ScriptedRunner):
    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        output = super().execute(scheduler_output, masks)
        return replace(output, handles=[*output.handles, 99][::-1])


def test_an_answer_for_other_rows_fails_the_step() -> None:
    outcome = StepExecutor(Shuffles(), LIMITS, lambda: 0).execute(FIRST)
    assert isinstance(outcome, StepFailure)
    assert outcome.reason == "STEP_RAISED"
