"""min_p, top_k and top_p as one number a row: the lowest logit that survives.

Thresholds rather than sorted lists: tokens that tie with the last one kept are all kept, so the
result depends on no order. No full sort of the vocabulary: the likeliest tokens are selected in
growing numbers until they hold what top_p asks for. A row's threshold is a function of its own
logits and parameters alone, whatever the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.sampler.metadata import Float64s, SamplingBatch
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows, Float32s, Ints
from worker_svc.sampler.weights import total_weights

FIRST_CANDIDATES = 64
"""Likeliest tokens that top_k and top_p look at first; times 16 for as long as they are too few."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Parameters of rows, as columns [num_rows]; with none of them a row keeps all."""

    temperatures: Float32s
    log_min_p: Float64s
    top_k: Ints
    """0 keeps all."""
    top_p: Float64s
    """1 keeps all."""

    @classmethod
    def of(cls, batch: SamplingBatch, places: Ints) -> Truncation:
        return cls(
            batch.temperatures[places],
            batch.log_min_p[places],
            batch.top_k[places],
            batch.top_p[places],
        )

    @property
    def keeps_all(self) -> bool:
        """Whether no row drops anything."""
        drops = (self.top_k > 0) | (self.top_p < 1.0) | (self.log_min_p > -np.inf)
        return not drops.any()


def lowest_survivors(rows: BlockedRows, truncation: Truncation, scratch: Scratch) -> Float32s:
    """The threshold of each row, [num_rows]; -inf keeps all.

    Args:
        rows: Logits already divided by the temperature; at least one of each row is finite, none
            is NaN.
        truncation: Parameters of the rows.
        scratch: Memory to work in.
    """
    if truncation.keeps_all:
        return np.full(len(rows), -np.inf, dtype=np.float32)
    maxima: Float32s = rows.maxima.max(axis=1)
    # Without min_p the sum is -inf.
    thresholds: Float32s = (maxima.astype(np.float64) + truncation.log_min_p).astype(np.float32)
    _raise_to_top_k(rows, truncation.top_k, thresholds, scratch)
    _raise_to_top_p(rows, truncation.top_p, maxima, thresholds, scratch)
    return thresholds


def _raise_to_top_k(rows: BlockedRows, top_k: Ints, thresholds: Float32s, scratch: Scratch) -> None:
    limited = np.flatnonzero((top_k > 0) & (top_k < rows.vocab_size))
    for places in (
        limited[top_k[limited] <= FIRST_CANDIDATES],
        limited[top_k[limited] > FIRST_CANDIDATES],
    ):
        if len(places):
            wanted = top_k[places]
            largest = rows.largest(places, int(wanted.max()), scratch)
            kth = largest[np.arange(len(places)), wanted - 1]
            thresholds[places] = np.maximum(thresholds[places], kth)


def _raise_to_top_p(
    rows: BlockedRows,
    top_p: Float64s,
    maxima: Float32s,
    thresholds: Float32s,
    scratch: Scratch,
) -> None:
    """To the logit at which the sum of the likeliest survivors reaches `top_p` of them all."""
    places = np.flatnonzero(top_p < 1.0)
    if not len(places):
        return
    wanted = top_p[places] * total_weights(rows, places, thresholds, scratch)
    vocab_size = rows.vocab_size
    num_candidates = min(FIRST_CANDIDATES, vocab_size)
    while len(places):
        candidates = rows.largest(places, num_candidates, scratch)
        reached = _cumulative_weights(candidates, maxima[places]) >= wanted[:, None]
        if num_candidates == vocab_size:
            reached[:, -1] = True  # but for rounding they do
        found = reached[:, -1]
        last = candidates[found, reached[found].argmax(axis=1)]
        thresholds[places[found]] = np.maximum(thresholds[places[found]], last)
        places, wanted = places[~found], wanted[~found]
        num_candidates = min(16 * num_candidates, vocab_size)


def _cumulative_weights(candidates: Float32s, maxima: Float32s) -> Float64s:
    logits = torch.from_numpy(candidates - maxima[:, None])
    weights: Float64s = torch.exp(logits).cumsum(-1, dtype=torch.float64).numpy()
    return weights
