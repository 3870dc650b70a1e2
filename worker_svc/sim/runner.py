"""Executes steps without tensors: writes tokens through slot mappings, reads them back by tables.

Implements `step.Runner` for `--device sim`. Owns request state and simulated pages. All rows write
before any row reads, as in a real forward pass, so a row that writes into another's block is seen
in the same step. Called on the device thread; knows nothing of gRPC and imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pagewire.engine_config import EngineConfig
from pagewire.sampling_params import SamplingParams
from worker_svc.cpu_memory import available_kv_bytes
from worker_svc.grammar_masks import Bitmasks, MaskSource, no_masks
from worker_svc.sim.group_pages import GroupPages
from worker_svc.sim.hashing import MASK
from worker_svc.sim.metadata import read_model_info
from worker_svc.sim.sampling import SimVocabulary, choose_token
from worker_svc.sim.step_time import FixedStepTime, StepTime
from worker_svc.sim.token_pages import Blocks
from worker_svc.step import (
    EMPTY_MASK,
    FailedRow,
    LogprobColumns,
    ModelInfo,
    ModelRunnerOutput,
    NewRequest,
    ProgressCallback,
    RowFailure,
    SchedulerOutput,
    StepTimings,
)
from worker_svc.thinking_budget import ThinkingState

_BYTES_PER_VALUE = 2


@dataclass(slots=True)
class _Request:
    """One request; `num_computed_tokens` of its tokens are in the pages."""

    params: SamplingParams
    seed: int
    num_prompt_tokens: int
    token_ids: list[int]
    num_computed_tokens: int
    block_tables: list[Blocks]
    """By KV cache group."""
    thinking: ThinkingState | None = None
    """With a budget."""
    failure: RowFailure | None = None
    is_over: bool = False
    """It failed, or it ended while the masks of a step were made: no later step samples for it."""

    @classmethod
    def from_new_request(cls, new: NewRequest) -> _Request:
        ends = np.cumsum(new.block_counts or [len(new.block_ids)])
        budget = new.sampling.thinking_budget
        return cls(
            params=new.sampling,
            seed=(new.sampling.seed or 0) & MASK,
            num_prompt_tokens=len(new.prompt_token_ids),
            token_ids=[*new.prompt_token_ids, *new.output_token_ids],
            num_computed_tokens=new.num_computed_tokens,
            block_tables=np.split(np.array(new.block_ids, dtype=np.int64), ends[:-1]),
            thinking=None if budget is None else ThinkingState(budget, new.output_token_ids),
        )

    def append_blocks(self, group_id: int, block_ids: Sequence[int]) -> None:
        new_blocks = np.array(block_ids, dtype=np.int64)
        self.block_tables[group_id] = np.append(self.block_tables[group_id], new_blocks)

    def append(self, token_id: int) -> None:
        """Take in a new output token."""
        self.token_ids.append(token_id)
        if self.thinking is not None:
            self.thinking.append([token_id])

    @property
    def forced_token_id(self) -> int | None:
        """What must come next."""
        return None if self.thinking is None else self.thinking.forced()[0]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_sampling(self) -> bool:
        """All known tokens are computed, so that the next one can be chosen."""
        return not self.is_over and self.num_computed_tokens == len(self.token_ids)


class SimRunner:
    """The simulated device. `load`, then `allocate_kv_cache`, then steps."""

    def __init__(self, config: EngineConfig, step_time: StepTime | None = None) -> None:
        self._config = config
        self._step_time = step_time or FixedStepTime(config.device.sim_step_time_us / 1e6)
        self._info: ModelInfo | None = None
        self._vocabulary = SimVocabulary(1)
        self._pages: GroupPages | None = None
        self._requests: dict[int, _Request] = {}

    def load(self, progress: ProgressCallback) -> ModelInfo:
        progress("read_model_config", 0.0)
        self._info = info = read_model_info(self._config)
        self._vocabulary = SimVocabulary(info.vocab_size, info.eos_token_ids)
        progress("read_model_config", 1.0)
        return info

    def kv_bytes_per_block(self, block_size: int) -> int:
        """What the model's real keys and values would take."""
        if self._info is None:
            raise RuntimeError("no model is loaded: call load first")
        num_layers = max(len(group.layers) for group in self._info.kv_cache_groups)
        values_per_token = 2 * num_layers * self._info.num_kv_heads * self._info.head_dim
        return values_per_token * _BYTES_PER_VALUE * block_size

    def available_kv_bytes(self) -> int:
        return available_kv_bytes(self._config.cache)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        if self._info is None:
            raise RuntimeError("no model is loaded: call load first")
        self._requests.clear()
        windows = [group.sliding_window for group in self._info.kv_cache_groups]
        self._pages = GroupPages(windows, num_blocks, block_size)

    def reset(self) -> None:
        self._requests.clear()
        self._pages = None

    def sleep(self, level: int) -> None:
        self.reset()

    def wake_weights(self, progress: ProgressCallback) -> ModelInfo:
        return self.load(progress)

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        if self._pages is None:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        begin_ns = time.perf_counter_ns()
        self._update_requests(scheduler_output)
        prepared_ns = time.perf_counter_ns()
        rows = [self._requests[handle] for handle in scheduler_output.handles]
        drafts = scheduler_output.drafts()
        self._write(self._pages, scheduler_output, rows, drafts)
        written_ns = time.perf_counter_ns()
        row_masks = self._await_masks(scheduler_output, masks, begin_ns)
        sampled = [
            self._sample(self._pages, row, drafts.get(handle, ()), row_masks.get(handle))
            for handle, row in zip(scheduler_output.handles, rows, strict=True)
        ]
        sampled_ns = time.perf_counter_ns()
        # What is simulated is the forward pass; here it ends later than the real work does.
        self._wait(scheduler_output, begin_ns)
        end_ns = time.perf_counter_ns()
        return ModelRunnerOutput(
            step=scheduler_output.step,
            handles=scheduler_output.handles,
            num_sampled=[len(tokens) for tokens in sampled],
            sampled_token_ids=[token for tokens in sampled for token in tokens],
            failed=[
                FailedRow(handle, row.failure)
                for handle, row in zip(scheduler_output.handles, rows, strict=True)
                if row.failure is not None
            ],
            logprobs=self._logprobs(rows, sampled),
            prompt_logprobs=self._prompt_logprobs(scheduler_output.handles, rows, sampled),
            timings=StepTimings(
                prepare_ns=prepared_ns - begin_ns,
                forward_ns=written_ns - prepared_ns + end_ns - sampled_ns,
                sample_ns=sampled_ns - written_ns,
                total_ns=end_ns - begin_ns,
            ),
        )

    def _update_requests(self, step: SchedulerOutput) -> None:
        for handle in (*step.finished_handles, *step.preempted_handles):
            self._requests.pop(handle, None)
        for new in step.new_requests:
            self._requests[new.handle] = _Request.from_new_request(new)
        start, num_groups = 0, 1 if self._info is None else self._info.num_kv_cache_groups
        for entry, count in enumerate(step.new_block_counts):
            if count:
                row, group_id = divmod(entry, num_groups)
                new_blocks = step.new_block_ids[start : start + count]
                self._requests[step.handles[row]].append_blocks(group_id, new_blocks)
                start += count

    def _write(
        self,
        pages: GroupPages,
        step: SchedulerOutput,
        rows: Sequence[_Request],
        drafts: Mapping[int, Sequence[int]],
    ) -> None:
        """Write known tokens, which are computed then, and drafts behind them."""
        for handle, row, count in zip(step.handles, rows, step.num_scheduled_tokens, strict=True):
            if row.is_over:
                continue
            start = row.num_computed_tokens
            token_ids = row.token_ids[start : start + count]
            row.num_computed_tokens += len(token_ids)  # drafts do not count before they are chosen
            if handle in drafts:
                token_ids += drafts[handle]
            pages.write(row.block_tables, start, token_ids)

    def _await_masks(
        self, step: SchedulerOutput, masks: MaskSource, begin_ns: int
    ) -> Mapping[int, Bitmasks]:
        """The masks of rows that sample, by handle; those without any have ended."""
        sampling = [handle for handle in step.masked_handles if self._requests[handle].is_sampling]
        if not sampling:
            return {}
        self._wait(step, begin_ns)  # the forward pass, which the making of masks overlaps
        row_masks = masks().by_handle()
        for handle in sampling:
            self._requests[handle].is_over = handle not in row_masks
        return row_masks

    def _sample(
        self,
        pages: GroupPages,
        row: _Request,
        drafts: Sequence[int],
        masks: Bitmasks | None,
    ) -> list[int]:
        """The next tokens, which become known; nothing while the prefill is not complete.

        One, and one more for each draft that equals the token chosen at its place.
        """
        sampled: list[int] = []
        if not row.is_sampling:
            return sampled
        for draft in (*drafts, None):
            mask = None if masks is None else masks[len(sampled)]
            context = pages.read(row.block_tables, row.num_computed_tokens)
            token_id = choose_token(
                context,
                row.params,
                row.seed,
                row.num_output_tokens,
                self._vocabulary,
                mask,
                row.forced_token_id,
            )
            if token_id is None:
                row.failure, row.is_over = EMPTY_MASK, True
                break
            row.append(token_id)
            sampled.append(token_id)
            if token_id != draft:
                break
            row.num_computed_tokens += 1  # the draft is in the pages already
        return sampled

    def _logprobs(
        self, rows: Sequence[_Request], sampled: Sequence[Sequence[int]]
    ) -> LogprobColumns | None:
        if all(row.params.num_logprobs is None for row in rows):
            return None
        return self._vocabulary.logprobs(
            (token_id, row.params.logprob_token_ids or row.params.logprobs)
            for row, tokens in zip(rows, sampled, strict=True)
            for token_id in tokens
        )

    def _prompt_logprobs(
        self,
        handles: Sequence[int],
        rows: Sequence[_Request],
        sampled: Sequence[Sequence[int]],
    ) -> dict[int, LogprobColumns]:
        """Of the requests that got their first token."""
        found = {}
        for handle, row, tokens in zip(handles, rows, sampled, strict=True):
            num_top = row.params.prompt_logprobs
            if num_top is not None and tokens and row.num_output_tokens == len(tokens):
                prompt = row.token_ids[1 : row.num_prompt_tokens]
                found[handle] = self._vocabulary.logprobs((token, num_top) for token in prompt)
        return found

    def _wait(self, step: SchedulerOutput, begin_ns: int) -> None:
        """The rest of the step's simulated time; this thread stands for the device."""
        rest_s = self._step_time.seconds(step) - (time.perf_counter_ns() - begin_ns) / 1e9
        if rest_s > 0:
            # The time itself is what is simulated; it passes on the device thread, never on a loop.
            time.sleep(rest_s)
