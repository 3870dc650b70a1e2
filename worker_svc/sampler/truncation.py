"""min_p, top_k and top_p as one number a row: the lowest logit that survives.

Thresholds rather than sorted lists: tokens that tie with the last one kept are all kept, so the
result depends on no order. No full sort of the vocabulary: the likeliest tokens are selected in
growing numbers until they hold what top_p asks for. A row's threshold is a function of its own
logits and parameters alone.
"""

from __future__ import annotations

import math

import torch

from pagewire.sampling_params import SamplingParams

FIRST_CANDIDATES = 64
"""Likeliest tokens that top_p looks at first; times 16 for as long as they are too few."""


def lowest_survivor(logits: torch.Tensor, params: SamplingParams) -> float:
    """The threshold of one row; -inf keeps all.

    Args:
        logits: [vocab_size] float32, already divided by the temperature.
        params: Normalized parameters of the row.
    """
    threshold = -math.inf
    maximum = float(logits.max())
    if params.min_p > 0.0:
        threshold = _float32(maximum + math.log(params.min_p))
    if 0 < params.top_k < logits.shape[0]:
        threshold = max(threshold, float(logits.topk(params.top_k).values[-1]))
    if params.top_p < 1.0:
        threshold = max(threshold, _top_p_threshold(logits, threshold, maximum, params.top_p))
    return threshold


def survivor_weights(logits: torch.Tensor, threshold: float) -> torch.Tensor:
    """exp(logit - maximum) of the survivors, 0 for all others: [vocab_size] float32."""
    weights = torch.exp(logits - logits.max())
    if threshold > -math.inf:
        weights.masked_fill_(logits < threshold, 0.0)
    return weights


def _top_p_threshold(logits: torch.Tensor, threshold: float, maximum: float, top_p: float) -> float:
    """The logit at which the sum of the likeliest survivors reaches `top_p` of them all."""
    # cumsum rather than sum: one order of additions, whatever the number of threads.
    wanted = top_p * float(survivor_weights(logits, threshold).double().cumsum(0)[-1])
    num_candidates = min(FIRST_CANDIDATES, logits.shape[0])
    while True:
        candidates = logits.topk(num_candidates).values  # falling
        reached = torch.exp(candidates - maximum).double().cumsum(0) >= wanted
        if bool(reached[-1]):
            return float(candidates[int(reached.int().argmax())])
        if num_candidates == logits.shape[0]:
            return float(candidates[-1])
        num_candidates = min(16 * num_candidates, logits.shape[0])


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
