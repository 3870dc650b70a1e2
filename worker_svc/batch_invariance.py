"""The check at load that `--batch-invariant` holds for this model, on this machine, as it is set.

What a GEMM does with few rows depends on the library, the processor, the number of threads and the
shape of the weights, and a Transformers model may multiply in any way: so the promise is tried out.
One sequence is computed whole, in chunks, and beside others, and every bit of its hidden states and
logits must agree. Called by the model runner once a model is loaded; leaves no KV cache behind.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import torch

from pagewire.sampling_params import SamplingParams
from worker_svc.attention.base import AttentionBackend
from worker_svc.input_batch import InputBatch, StepInputs
from worker_svc.step import ModelInfo, NewRequest, SchedulerOutput

_CHUNKS = (33, 17, 11, 9, 5, 4, 1)
"""Tokens: where kernels that take 4, 8, 16 or 32 rows at a time have some left, and few."""
_NUM_TOKENS = sum(_CHUNKS)
_MATES = (5, 20)
"""Lengths of the sequences beside it, which go on for as long as it does."""
_LOGIT_ROWS = (1, 2, 5, 9, 16)
_MOST_LOGIT_ROWS = 33
_SAMPLING = SamplingParams(temperature=0.0)

_Step = dict[int, int]
"""Tokens of each sequence that a step computes."""


class CheckedModel(Protocol):
    """What is tried out of a loaded model."""

    backend: AttentionBackend
    info: ModelInfo
    min_rows: int

    def forward(self, inputs: StepInputs) -> torch.Tensor: ...
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


@torch.inference_mode()
def check_batch_invariance(model: CheckedModel, block_size: int, *, has_logits: bool) -> None:
    """Try the promise out.

    Args:
        model: Loaded, without a KV cache.
        block_size: Tokens in a KV block.
        has_logits: Whether it computes logits: not on a pipeline stage before the last.

    Raises:
        ValueError: It does not hold; the message says what to change.
    """
    trial = _Trial(model, block_size)
    whole = trial.run([{0: trial.num_tokens}])
    chunks = [{0: count} for count in _fitting(_CHUNKS, trial.num_tokens)]
    if not torch.equal(trial.run(chunks), whole):
        raise _broken("chunks of a prompt")
    if not torch.equal(trial.run(_mixed(trial.lengths)), whole):
        raise _broken("other requests in a step")
    if not has_logits:
        return
    logits = model.compute_logits(whole[:_MOST_LOGIT_ROWS])
    for count in _LOGIT_ROWS:
        if not torch.equal(model.compute_logits(whole[:count]), logits[:count]):
            raise _broken("the number of requests that sample")


def _broken(cause: str) -> ValueError:
    num_threads = torch.get_num_threads()
    ways = "leave --batch-invariant out"
    if num_threads > 1:
        ways = f"use --num-threads 1 ({num_threads} now), or {ways}"
    return ValueError(
        f"batch_invariant does not hold for this model on this machine: {cause} changed numbers; "
        + ways
    )


def _fitting(chunks: Sequence[int], total: int) -> list[int]:
    """The first of `chunks` that make up `total`, the last one cut."""
    taken: list[int] = []
    for chunk in chunks:
        taken.append(min(chunk, total - sum(taken)))
    return [chunk for chunk in taken if chunk]


def _mixed(lengths: Sequence[int]) -> list[_Step]:
    """All sequences at once: prefills but for their last tokens, then those one by one."""
    last = min(3, min(lengths) - 1)
    prefill = {index: length - last for index, length in enumerate(lengths)}
    return [prefill, *[dict.fromkeys(range(len(lengths)), 1)] * last]


class _Trial:
    """Sequences of tokens, and the steps that compute them."""

    def __init__(self, model: CheckedModel, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        limit = model.info.max_model_len
        self.lengths = [min(length, limit) for length in (_NUM_TOKENS, *_MATES)]
        rng = random.Random(0)
        vocab_size = model.info.vocab_size
        self._prompts = [
            [rng.randrange(vocab_size) for _ in range(length)] for length in self.lengths
        ]

    @property
    def num_tokens(self) -> int:
        """Of the sequence that is compared."""
        return self.lengths[0]

    def run(self, steps: Sequence[_Step]) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] of the first sequence."""
        sizes = [-(-length // self._block_size) for length in self.lengths]
        self._model.backend.allocate_kv_cache(1 + sum(sizes), self._block_size)
        try:
            batch = InputBatch(self._block_size, self._model.info.max_model_len)
            outputs = [
                self._hidden(batch, self._scheduled(number, step, sizes))
                for number, step in enumerate(steps)
            ]
        finally:
            self._model.backend.free_kv_cache()
        return torch.cat(outputs)

    def _scheduled(self, number: int, step: _Step, sizes: Sequence[int]) -> SchedulerOutput:
        return SchedulerOutput(
            step=number,
            new_requests=[self._new_request(index, sizes) for index in step if number == 0],
            handles=list(step),
            num_scheduled_tokens=list(step.values()),
        )

    def _new_request(self, index: int, sizes: Sequence[int]) -> NewRequest:
        first = 1 + sum(sizes[:index])
        return NewRequest(
            handle=index,
            request_id=f"check-{index}",
            prompt_token_ids=self._prompts[index],
            output_token_ids=[],
            sampling=_SAMPLING,
            num_computed_tokens=0,
            block_ids=range(first, first + sizes[index]),
        )

    def _hidden(self, batch: InputBatch, step: SchedulerOutput) -> torch.Tensor:
        """Of the first sequence's tokens of a step."""
        rows = batch.update(step)
        inputs = batch.make_inputs(rows, min_tokens=self._model.min_rows)
        hidden = self._model.forward(inputs)
        batch.advance(rows)
        place = next(i for i, row in enumerate(inputs.rows) if row.state.handle == 0)
        start, end = inputs.query_start_loc[place : place + 2]
        return hidden[start:end].clone()
