"""Runs steps on a runner and turns everything that can go wrong into one failed step.

Owns which requests the worker knows, and the checks that keep a malformed step from the runner: a
bad block id must not become a bad memory access. Knows neither streams nor protobuf. Called on the
device thread, in order of steps.

After a failed step the worker has forgotten all requests that the step named, and every other
request is as before; the scheduler brings back what it wants to go on with in `new_requests`. So a
step that was sent before its sender knew of the failure fails by itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pagewire.kit.errors import PagewireError
from pagewire.kit.logs import get_logger
from worker_svc.grammar_masks import (
    MASKS_MISSING,
    GrammarMasks,
    MaskSource,
    check_masks,
    no_masks,
)
from worker_svc.step import ModelRunnerOutput, NewRequest, Runner, SchedulerOutput

log = get_logger("worker_svc.step_executor")

INVALID_STEP = "INVALID_STEP"
STEP_RAISED = "STEP_RAISED"


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step gave, and where its time went besides, in nanoseconds."""

    output: ModelRunnerOutput
    idle_ns: int
    """The device had nothing to do before it."""
    queue_ns: int = 0
    """It waited behind the steps before."""
    busy_ns: int = 0
    """From its begin to its end."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The step as a whole failed; the worker lives."""

    step: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a step must stay within."""

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    max_num_batched_tokens: int
    num_groups: int = 1
    """KV cache groups: so many block tables a request has."""
    tokens_come_late: bool = False
    """A pipeline stage before the last: sampled tokens reach the runner by a way of their own, so
    that it alone can check how far a request may be computed."""


@dataclass(slots=True)
class _Known:
    """A request that the worker knows."""

    num_tokens: int
    num_computed_tokens: int
    num_blocks: list[int]
    """By KV cache group, with the null blocks of a window that has moved on."""
    is_over: bool = False
    """It failed, or it ended while the masks of a step were made: no later step samples for it."""


class _InvalidStepError(Exception):
    """The step breaks the protocol; the text names the rule."""


class StepExecutor:
    """Executes the steps of one Execute stream."""

    def __init__(
        self,
        runner: Runner,
        limits: StepLimits,
        idle_ns: Callable[[], int],
        queue_ns: Callable[[], int] = lambda: 0,
        around: Callable[[SchedulerOutput], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Begin a stream.

        Args:
            runner: Computes.
            limits: Steps stay within them.
            idle_ns: While a step runs: how long the device had nothing to do before it.
            queue_ns: Likewise: how long the step waited.
            around: What the runner's part of a step runs in.
        """
        self._runner = runner
        self._limits = limits
        self._idle_ns = idle_ns
        self._queue_ns = queue_ns
        self._around = around
        self._known: dict[int, _Known] = {}

    @property
    def num_requests(self) -> int:
        return len(self._known)

    def execute(
        self, step: SchedulerOutput, masks: MaskSource = no_masks
    ) -> StepDone | StepFailure:
        """Run a step; never raises for what the step, its masks or the runner do."""
        begin_ns, idle_ns, queue_ns = time.monotonic_ns(), self._idle_ns(), self._queue_ns()
        try:
            self._apply(step)
            with self._around(step):
                output = self._runner.execute(step, lambda: self._checked(step, masks()))
            self._note_output(step, output)
        except _InvalidStepError as error:
            return self.reject(step, INVALID_STEP, str(error))
        except PagewireError as error:
            # Masks that do not come are a stream that ends: nothing went wrong here.
            is_told = error.reason == MASKS_MISSING
            tell = {"problem": error.message} if is_told else {"exc_info": True}
            log.warning("step_failed", step=step.step, reason=error.reason, **tell)
            return self.reject(step, error.reason, error.message)
        except Exception:
            error_id = secrets.token_hex(8)
            log.exception("step_raised", step=step.step, error_id=error_id)
            message = f"the step raised an error; the worker's log has more under id {error_id}"
            return self.reject(step, STEP_RAISED, message)
        return StepDone(output, idle_ns, queue_ns, time.monotonic_ns() - begin_ns)

    def reject(self, step: SchedulerOutput, reason: str, message: str) -> StepFailure:
        """Fail a step without running it: forget every request that it names."""
        named = [
            *step.finished_handles,
            *step.preempted_handles,
            *step.handles,
            *(new.handle for new in step.new_requests),
        ]
        for handle in named:
            self._known.pop(handle, None)
        try:
            # No rows: only request state changes.
            self._runner.execute(SchedulerOutput(step.step, finished_handles=named))
        except Exception:
            log.exception("forgetting_raised", step=step.step)
        return StepFailure(step.step, reason, message)

    def _apply(self, step: SchedulerOutput) -> None:
        """Check the step and note what it changes."""
        self._check_columns(step)
        for handle in (*step.finished_handles, *step.preempted_handles):
            self._known.pop(handle, None)  # one that a failed step forgot is no error
        for new in step.new_requests:
            self._add(new)
        self._check_blocks(step.new_block_ids)
        num_groups = self._limits.num_groups
        counts = step.new_block_counts or (0,) * (len(step.handles) * num_groups)
        draft_counts = step.draft_counts or (0,) * len(step.handles)
        for row, (handle, num_scheduled, num_drafts) in enumerate(
            zip(step.handles, step.num_scheduled_tokens, draft_counts, strict=True)
        ):
            num_new_blocks = counts[row * num_groups : (row + 1) * num_groups]
            self._schedule(handle, num_scheduled, num_new_blocks, num_drafts)

    def _check_columns(self, step: SchedulerOutput) -> None:
        num_rows = len(step.handles)
        _require(
            len(step.num_scheduled_tokens) == num_rows
            and len(step.new_block_counts) in (0, num_rows * self._limits.num_groups),
            "handles, num_scheduled_tokens and new_block_counts must have one length (the last one"
            f" times the number of KV cache groups, {self._limits.num_groups})",
        )
        _require(
            sum(step.new_block_counts) == len(step.new_block_ids),
            "new_block_ids must have as many ids as new_block_counts say",
        )
        self._check_draft_columns(step)
        handles = set(step.handles)
        _require(len(handles) == num_rows, "a handle is scheduled twice")
        _require(handles.issuperset(step.masked_handles), "a masked handle is not scheduled")
        _require(
            step.total_num_scheduled_tokens <= self._limits.max_num_batched_tokens,
            f"more than max_num_batched_tokens ({self._limits.max_num_batched_tokens}) tokens",
        )

    def _check_draft_columns(self, step: SchedulerOutput) -> None:
        _require(
            len(step.draft_counts) in (0, len(step.handles)),
            "handles and draft_counts must have one length",
        )
        _require(
            sum(step.draft_counts) == len(step.draft_token_ids),
            "draft_token_ids must have as many ids as draft_counts say",
        )
        self._check_tokens("draft_token_ids", step.draft_token_ids)

    def _check_tokens(self, name: str, token_ids: Sequence[int]) -> None:
        highest, vocab_size = max(token_ids, default=0), self._limits.vocab_size
        _require(
            highest < vocab_size,
            f"{name}: token id {highest} is outside the vocabulary of {vocab_size}",
        )

    def _add(self, new: NewRequest) -> None:
        name, limits = f"new request {new.handle}", self._limits
        num_tokens = len(new.prompt_token_ids) + len(new.output_token_ids)
        _require(new.handle not in self._known, f"{name}: the handle is in use")
        _require(len(new.prompt_token_ids) > 0, f"{name}: no prompt tokens")
        _require(
            num_tokens <= limits.max_model_len,
            f"{name}: {num_tokens} tokens are more than max_model_len ({limits.max_model_len})",
        )
        _require(
            new.num_computed_tokens < num_tokens,
            f"{name}: num_computed_tokens leaves nothing to compute",
        )
        self._check_tokens(name, new.prompt_token_ids)
        self._check_tokens(name, new.output_token_ids)
        self._check_blocks(new.block_ids)
        block_counts = list(new.block_counts or [len(new.block_ids)])
        _require(
            len(block_counts) == limits.num_groups and sum(block_counts) == len(new.block_ids),
            f"{name}: block_counts {block_counts} do not divide {len(new.block_ids)} blocks among"
            f" {limits.num_groups} KV cache groups",
        )
        self._known[new.handle] = _Known(num_tokens, new.num_computed_tokens, block_counts)

    def _check_blocks(self, block_ids: Sequence[int]) -> None:
        highest = max(block_ids, default=0)
        _require(
            highest < self._limits.num_blocks,
            f"block id {highest} is outside the {self._limits.num_blocks} blocks",
        )

    def _schedule(
        self, handle: int, num_scheduled: int, num_new_blocks: Sequence[int], num_drafts: int
    ) -> None:
        known = self._known.get(handle)
        if known is None:
            raise _InvalidStepError(f"handle {handle} is not known")
        for group_id, count in enumerate(num_new_blocks):
            known.num_blocks[group_id] += count
        if known.is_over or self._limits.tokens_come_late:
            return  # it fails again, alone; or the runner checks
        end = known.num_computed_tokens + num_scheduled
        known_end = end - num_drafts
        _require(
            num_scheduled - num_drafts >= 1, f"handle {handle}: no tokens scheduled beside drafts"
        )
        _require(
            known_end <= known.num_tokens,
            f"handle {handle}: tokens up to {known_end} scheduled, {known.num_tokens} are known",
        )
        _require(
            not num_drafts or known_end == known.num_tokens,
            f"handle {handle}: drafts follow token {known_end}, {known.num_tokens} are known",
        )
        num_blocks = min(known.num_blocks)
        _require(
            end <= min(num_blocks * self._limits.block_size, self._limits.max_model_len),
            f"handle {handle}: {num_blocks} blocks cannot hold {end} tokens",
        )
        known.num_computed_tokens = known_end

    def _checked(self, step: SchedulerOutput, masks: GrammarMasks) -> GrammarMasks:
        check_masks(masks, set(step.masked_handles), step.drafts(), self._limits.vocab_size)
        return masks

    def _note_output(self, step: SchedulerOutput, output: ModelRunnerOutput) -> None:
        if list(output.handles) != list(step.handles):
            raise RuntimeError("the runner's rows are not those of the step")
        if self._limits.tokens_come_late:
            return
        for handle, num_sampled in zip(output.handles, output.num_sampled, strict=True):
            known = self._known[handle]
            if num_sampled:
                known.num_tokens += num_sampled
                known.num_computed_tokens += num_sampled - 1  # accepted drafts
            elif known.num_computed_tokens == known.num_tokens:
                known.is_over = True
        for row in output.failed:
            self._known[row.handle].is_over = True


def _require(ok: bool, rule: str) -> None:
    if not ok:
        raise _InvalidStepError(rule)
