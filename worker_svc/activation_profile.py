"""What a largest step takes beside weights and KV, from dummy steps of a few tokens.

A dummy run of full size would cost seconds at each start of a CPU worker, and what a step holds
grows evenly with its tokens and its logits: two small runs of each give the line. Called by the
model runner once a model is loaded; it leaves no KV cache behind.
"""

from __future__ import annotations

from typing import Protocol

import torch

from worker_svc.attention.base import AttentionBackend
from worker_svc.dummy_steps import DummyRow, DummyStep, DummySteps
from worker_svc.grammar_masks import no_masks
from worker_svc.input_batch import StepInputs
from worker_svc.memory_profile import LargestStep, PeakAt, extrapolate
from worker_svc.peak_memory import peak_bytes
from worker_svc.request_state import BatchRow
from worker_svc.sampler.base import StepSampler
from worker_svc.step_sampling import sample_rows

_NUM_TOKENS = (8, 16)
_NUM_ROWS = (8, 16)
_CONTEXT_TOKENS = 128
"""Tokens before those of a dummy step, so that attention works on tiles of full width."""


class ProfiledModel(Protocol):
    """What a dummy step needs of a loaded model."""

    backend: AttentionBackend
    sampler: StepSampler
    min_rows: int

    def forward(self, inputs: StepInputs) -> torch.Tensor: ...
    def sampling_states(
        self, inputs: StepInputs, hidden: torch.Tensor
    ) -> tuple[list[BatchRow], torch.Tensor]: ...
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


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
    num_blocks = 1 - (-(_CONTEXT_TOKENS + max(_NUM_TOKENS)) // block_size)
    steps = DummySteps(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        min_tokens=model.min_rows,
    )
    peaks = _Peaks(model, steps, max_model_len)
    model.backend.allocate_kv_cache(num_blocks, block_size)
    try:
        # What is made at a first use is not a step's.
        peaks.forward(1)
        forward = peaks.forward(_NUM_TOKENS[0]), peaks.forward(_NUM_TOKENS[1])
        forward_bytes = extrapolate(forward, largest.num_tokens)
        if not samples:
            return forward_bytes
        peaks.sampling(1)
        sampling = peaks.sampling(_NUM_ROWS[0]), peaks.sampling(_NUM_ROWS[1])
        return forward_bytes + extrapolate(sampling, largest.num_logits)
    finally:
        model.backend.free_kv_cache()


class _Peaks:
    """Peaks of dummy steps."""

    def __init__(self, model: ProfiledModel, steps: DummySteps, max_model_len: int) -> None:
        self._model = model
        self._steps = steps
        self._max_model_len = max_model_len
        self._hidden: torch.Tensor | None = None

    def forward(self, num_tokens: int) -> PeakAt:
        """Of one request's chunk."""
        num_tokens = min(num_tokens, self._max_model_len)
        inputs = self._make(num_rows=1, num_tokens=num_tokens).inputs

        def run() -> torch.Tensor:
            self._hidden = None
            self._hidden = self._model.forward(inputs)
            return self._hidden

        return PeakAt(num_tokens, peak_bytes(run))

    def sampling(self, num_rows: int) -> PeakAt:
        """Of so many requests' next tokens, upon the hidden states of the last forward pass."""
        dummy = self._make(num_rows, num_tokens=1)
        if self._hidden is None:
            raise RuntimeError("a forward pass comes first")
        num_places = max(num_rows, self._model.min_rows)
        hidden = self._hidden[torch.arange(num_places) % len(self._hidden)]
        return PeakAt(num_rows, peak_bytes(lambda: sample_dummy(self._model, dummy, hidden)))

    def _make(self, num_rows: int, num_tokens: int) -> DummyStep:
        context = min(_CONTEXT_TOKENS, self._max_model_len - num_tokens)
        return self._steps.make([DummyRow(num_tokens, context)] * num_rows)


def sample_dummy(model: ProfiledModel, dummy: DummyStep, hidden: torch.Tensor) -> None:
    """Logits and tokens of a dummy step's rows, upon `hidden` [num_tokens, hidden_size]."""
    rows, states = model.sampling_states(dummy.inputs, hidden)
    logits = model.compute_logits(states)
    sample_rows(model.sampler, dummy.batch.sampling, dummy.step, rows, logits, no_masks)
