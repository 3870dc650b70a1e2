"""Chooses one token a row: greedy, or the draw of docs/design/draws.md.

Owns the order of operations. A row's token depends on its own logits, parameters, seed and output
index, never on its place in the batch. A row of NaN, or one where every token is masked, fails
alone. Called by the model runner; knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.sampler.grammar import MaskedRows, apply_masks
from worker_svc.sampler.logprobs import token_logprobs
from worker_svc.sampler.metadata import SamplerOutput, SamplingRow, TokenLogprobs
from worker_svc.sampler.philox import uniforms
from worker_svc.sampler.processors import apply_processors
from worker_svc.sampler.truncation import lowest_survivor, survivor_weights
from worker_svc.step import EMPTY_MASK, NAN_LOGITS, RowFailure


class Sampler:
    """Sampler of one model; `eos_token_ids` are what `min_tokens` forbids."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = torch.tensor(list(eos_token_ids), dtype=torch.int64)

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        masked: MaskedRows | None = None,
    ) -> SamplerOutput:
        """One token for each row of logits.

        Args:
            logits: [num_rows, vocab_size] float32; they are changed.
            rows: One for each row of logits.
            masked: Grammar masks. They come first: logprobs are those of what a mask leaves.
        """
        failures = _non_finite_rows(logits)
        if masked is not None:
            apply_masks(logits, masked)
        raw = {
            index: logits[index].clone()
            for index, row in enumerate(rows)
            if row.params.logprobs is not None and failures[index] is None
        }
        apply_processors(logits, rows, self._eos_token_ids)
        best = logits.max(dim=-1)
        token_ids: npt.NDArray[np.int64] = best.indices.numpy().copy()
        for index, maximum in enumerate(best.values.tolist()):
            if failures[index] is None and maximum == -np.inf:
                failures[index] = EMPTY_MASK
        drawn = [
            index
            for index, row in enumerate(rows)
            if not row.params.is_greedy and failures[index] is None
        ]
        if drawn:
            token_ids[drawn] = _draw(logits, rows, drawn)
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        for index, raw_logits in raw.items():
            if failures[index] is None:
                num_top = rows[index].params.logprobs or 0
                logprobs[index] = token_logprobs(raw_logits, int(token_ids[index]), num_top)
        return SamplerOutput(token_ids, failures, logprobs)


def draw_token(weights: torch.Tensor, uniform: float) -> int:
    """Inverse CDF in vocabulary order.

    Args:
        weights: [vocab_size] float32, not negative, at least one above zero; any scale.
        uniform: Strictly inside (0, 1).
    """
    cumulative = weights.double().cumsum(0).numpy()
    total = cumulative[-1]
    token_id = int(np.searchsorted(cumulative, uniform * total, side="right"))
    # The product may round up to the total: then the last token that has any weight.
    return min(token_id, int(np.searchsorted(cumulative, total, side="left")))


def _draw(
    logits: torch.Tensor, rows: Sequence[SamplingRow], drawn: Sequence[int]
) -> npt.NDArray[np.int64]:
    draws = uniforms(
        np.array([rows[index].seed for index in drawn], dtype=np.uint64),
        np.array([rows[index].output_index for index in drawn], dtype=np.uint64),
    )
    token_ids = np.empty(len(drawn), dtype=np.int64)
    for place, (index, uniform) in enumerate(zip(drawn, draws.tolist(), strict=True)):
        params = rows[index].params
        scaled = logits[index] / params.temperature
        weights = survivor_weights(scaled, lowest_survivor(scaled, params))
        token_ids[place] = draw_token(weights, uniform)
    return token_ids


def _non_finite_rows(logits: torch.Tensor) -> list[RowFailure | None]:
    """NaN or +inf anywhere in a row shows in its maximum."""
    finite = logits.amax(dim=-1) < torch.inf
    return [None if ok else NAN_LOGITS for ok in finite.tolist()]
