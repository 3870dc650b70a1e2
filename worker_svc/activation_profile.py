"""What a largest step takes beside weights and KV, from dummy steps of a few tokens.

A dummy run of full size would cost seconds at each start of a CPU worker, and what a step holds
grows evenly with its tokens and its logits: two small runs of each give the line. Called by the
model runner once a model is loaded; it leaves no KV cache behind.
"""

from __future__ import annotations

from typing import Protocol

import torch

from pagewire.sampling_params import SamplingParams
from worker_svc.attention.base import AttentionBackend
from worker_svc.grammar_masks import no_masks
from worker_svc.input_batch import InputBatch, StepInputs
from worker_svc.memory_profile import LargestStep, PeakAt, extrapolate
from worker_svc.peak_memory import peak_bytes
from worker_svc.request_state import BatchRow
from worker_svc.sampler.sampler import Sampler
from worker_svc.step import NewRequest, SchedulerOutput
from worker_svc.step_sampling import sample_rows

_NUM_TOKENS = (8, 16)
_NUM_ROWS = (8, 16)
_CONTEXT_TOKENS = 128
"""Tokens before those of a dummy step, so that attention works on tiles of full width."""
_SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)


class ProfiledModel(Protocol):
    """What a dummy step needs of a loaded model."""

    backend: AttentionBackend
    sampler: Sampler
    min_rows: int

    def forward(self, inputs: StepInputs) -> torch.Tensor: ...
    def logits(
        self, inputs: StepInputs, hidden: torch.Tensor
    ) -> tuple[list[BatchRow], torch.Tensor]: ...


@torch.inference_mode()
def activation_bytes(
    model: ProfiledModel,
    largest: LargestStep,
    block_size: int,
    max_model_len: int,
    *,
    samples: bool = True,
) -> int:
    """Peak of the largest step: its forward pass, and logits and sampling upon it.

    Args:
        model: Loaded, without a KV cache.
        largest: Sizes of that step.
        block_size: Tokens in a KV block.
        max_model_len: Longest sequence.
        samples: Whether it computes logits: not on a pipeline stage before the last.
    """
    dummy = _DummySteps(model, block_size, max_model_len)
    num_blocks = -(-(_CONTEXT_TOKENS + max(_NUM_TOKENS)) // block_size)
    model.backend.allocate_kv_cache(1 + num_blocks, block_size)
    try:
        # What is made at a first use is not a step's.
        dummy.forward_peak(1)
        forward = dummy.forward_peak(_NUM_TOKENS[0]), dummy.forward_peak(_NUM_TOKENS[1])
        forward_bytes = extrapolate(forward, largest.num_tokens)
        if not samples:
            return forward_bytes
        dummy.sampling_peak(1)
        sampling = dummy.sampling_peak(_NUM_ROWS[0]), dummy.sampling_peak(_NUM_ROWS[1])
        return forward_bytes + extrapolate(sampling, largest.num_logits)
    finally:
        model.backend.free_kv_cache()


class _DummySteps:
    """Steps whose requests share blocks: their numbers mean nothing."""

    def __init__(self, model: ProfiledModel, block_size: int, max_model_len: int) -> None:
        self._model = model
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._hidden: torch.Tensor | None = None

    def forward_peak(self, num_tokens: int) -> PeakAt:
        """Of one request's chunk."""
        num_tokens = min(num_tokens, self._max_model_len)
        _, _, inputs = self._inputs(num_rows=1, num_tokens=num_tokens)

        def forward() -> torch.Tensor:
            self._hidden = None
            self._hidden = self._model.forward(inputs)
            return self._hidden

        return PeakAt(num_tokens, peak_bytes(forward))

    def sampling_peak(self, num_rows: int) -> PeakAt:
        """Of so many requests' next tokens, upon the hidden states of the last forward pass."""
        batch, step, inputs = self._inputs(num_rows, num_tokens=1)
        if self._hidden is None:
            raise RuntimeError("a forward pass comes first")
        num_places = max(num_rows, self._model.min_rows)
        hidden = self._hidden[torch.arange(num_places) % len(self._hidden)]

        def sample() -> object:
            rows, logits = self._model.logits(inputs, hidden)
            sampler, table = self._model.sampler, batch.sampling
            return sample_rows(sampler, table, step, rows, logits, no_masks)

        return PeakAt(num_rows, peak_bytes(sample))

    def _inputs(
        self, num_rows: int, num_tokens: int
    ) -> tuple[InputBatch, SchedulerOutput, StepInputs]:
        context = min(_CONTEXT_TOKENS, self._max_model_len - num_tokens)
        num_blocks = -(-(context + num_tokens) // self._block_size)
        handles = range(num_rows)
        step = SchedulerOutput(
            step=1,
            new_requests=[
                NewRequest(
                    handle=handle,
                    request_id="profile",
                    prompt_token_ids=[0] * (context + num_tokens),
                    output_token_ids=[],
                    sampling=_SAMPLING,
                    num_computed_tokens=context,
                    block_ids=range(1, 1 + num_blocks),
                )
                for handle in handles
            ],
            handles=handles,
            num_scheduled_tokens=[num_tokens] * num_rows,
        )
        batch = InputBatch(self._block_size, self._max_model_len)
        rows = batch.update(step)
        return batch, step, batch.make_inputs(rows, min_tokens=self._model.min_rows)
