"""Draws of docs/design/draws.md on a device that sorts fast: no block, no candidate, whole rows.

The thresholds, weights and inverse CDF of `truncation` and `weights`, in tensor operations that
nobody waits for. A device may add weights up in another order than a CPU, so a draw that falls
within a float64's rounding of a border may differ.
"""

from __future__ import annotations

import numpy as np
import torch

from worker_svc.device import put
from worker_svc.sampler.metadata import Ints, SamplingBatch
from worker_svc.sampler.philox import uniforms
from worker_svc.sampler.truncation import Truncation
from worker_svc.sampler.weights import inverse_cdf


def draw_on_device(scaled: torch.Tensor, batch: SamplingBatch, places: Ints) -> torch.Tensor:
    """One token a row, [num_rows] int64; without meaning for a row with NaN or without a token.

    Args:
        scaled: [num_rows, vocab_size] float32, divided by the temperatures.
        batch: All places.
        places: [num_rows], those of the rows.
    """
    draws = uniforms(batch.seeds[places], batch.output_indices[places].astype(np.uint64))
    lowest = lowest_survivors_on_device(scaled, Truncation.of(batch, places))
    cumulative = _cumulative(_weights(scaled, lowest))
    token_ids = inverse_cdf(cumulative, put(draws, scaled.device))
    return token_ids.clamp_(max=scaled.shape[1] - 1)


def lowest_survivors_on_device(scaled: torch.Tensor, truncation: Truncation) -> torch.Tensor | None:
    """The threshold of each row, [num_rows, 1] float32; None keeps all.

    Args:
        scaled: [num_rows, vocab_size] float32, divided by the temperatures.
        truncation: Parameters of the rows.
    """
    if truncation.keeps_all:
        return None
    device, vocab_size = scaled.device, scaled.shape[1]
    log_min_p = put(truncation.log_min_p[:, None], device)
    lowest = (scaled.amax(-1, keepdim=True).double() + log_min_p).float()
    limits_k = (truncation.top_k > 0) & (truncation.top_k < vocab_size)
    limited = np.flatnonzero(limits_k | (truncation.top_p < 1.0))
    if not len(limited):
        return lowest
    rows = put(limited, device)
    part, low = scaled[rows], lowest[rows]
    falling = part.sort(-1, descending=True).values
    top_k = np.where(limits_k, truncation.top_k, vocab_size)[limited]
    low = torch.maximum(low, falling.gather(1, put(top_k[:, None] - 1, device)))
    top_p = put(truncation.top_p[limited, None], device)
    wanted = top_p * _cumulative(_weights(part, low))[:, -1:]
    sums = _cumulative(torch.exp(falling - falling[:, :1]))
    num_before = (sums < wanted).sum(-1, keepdim=True).clamp_(max=vocab_size - 1)
    reached = torch.where(top_p < 1.0, falling.gather(1, num_before), -torch.inf)
    lowest[rows] = torch.maximum(low, reached)
    return lowest


def _weights(scaled: torch.Tensor, lowest: torch.Tensor | None) -> torch.Tensor:
    weights = torch.exp(scaled - scaled.amax(-1, keepdim=True))
    return weights if lowest is None else weights.masked_fill_(scaled < lowest, 0.0)


def _cumulative(weights: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(weights, -1, dtype=torch.float64)
