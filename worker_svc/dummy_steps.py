"""Steps that stand for real ones while memory is measured: right shapes, numbers without meaning.

Their requests share blocks, so that long contexts need no large KV cache. Knows no models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.sampling_params import SamplingParams
from worker_svc.input_batch import InputBatch, StepInputs
from worker_svc.step import NewRequest, SchedulerOutput

_SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)


@dataclass(frozen=True, slots=True)
class DummyRow:
    """One request: so many tokens are computed, after so many that are."""

    num_tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class DummyStep:
    """A step and what a runner would make of it."""

    batch: InputBatch
    step: SchedulerOutput
    inputs: StepInputs


class DummySteps:
    """Steps over the blocks of a small cache."""

    def __init__(
        self, *, num_blocks: int, block_size: int, max_model_len: int, min_tokens: int
    ) -> None:
        """Prepare.

        Args:
            num_blocks: Of the cache, with the null block.
            block_size: Tokens in a block.
            max_model_len: Longest sequence.
            min_tokens: Steps of fewer tokens are padded.
        """
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._min_tokens = min_tokens

    def make(self, rows: Sequence[DummyRow]) -> DummyStep:
        handles = range(len(rows))
        step = SchedulerOutput(
            step=1,
            new_requests=[self._request(handle, row) for handle, row in enumerate(rows)],
            handles=handles,
            num_scheduled_tokens=[row.num_tokens for row in rows],
        )
        batch = InputBatch(self._block_size, self._max_model_len)
        inputs = batch.make_inputs(batch.update(step), min_tokens=self._min_tokens)
        return DummyStep(batch, step, inputs)

    def _request(self, handle: int, row: DummyRow) -> NewRequest:
        length = row.context + row.num_tokens
        needed = -(-length // self._block_size)
        return NewRequest(
            handle=handle,
            request_id="profile",
            prompt_token_ids=[0] * length,
            output_token_ids=[],
            sampling=_SAMPLING,
            num_computed_tokens=row.context,
            block_ids=[1 + index % (self._num_blocks - 1) for index in range(needed)],
        )
