"""Weights of the tokens that survive truncation, their sums, and the token that a uniform means.

Sums run in vocabulary order in float64. A token without weight changes no sum, so rows of which
few tokens survive are summed over the blocks that hold them, with the same bits as over the whole
vocabulary. Knows nothing of parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker_svc.sampler.metadata import Float64s
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows, Float32s, Ints

SPARSE_SHARE = 8
"""Rows whose survivors lie in at most one of so many blocks are summed over those alone."""


def total_weights(
    rows: BlockedRows, places: Ints, thresholds: Float32s, scratch: Scratch
) -> Float64s:
    """Sum of the weights of some rows, [len(places)].

    Args:
        rows: Logits divided by the temperature.
        places: Those to sum up.
        thresholds: [num_rows], the lowest logit that survives.
        scratch: Memory to work in.
    """
    totals = np.empty(len(places))
    for part in _parts(rows, places, thresholds):
        totals[part.members] = part.cumulative(thresholds, scratch)[1][:, -1].numpy()
    return totals


def draw_tokens(
    rows: BlockedRows, thresholds: Float32s, uniforms: Float64s, scratch: Scratch
) -> Ints:
    """Inverse CDF in vocabulary order, [num_rows].

    Args:
        rows: Logits divided by the temperature; the largest of each is finite.
        thresholds: [num_rows], the lowest logit that survives.
        uniforms: [num_rows], strictly inside (0, 1).
        scratch: Memory to work in.
    """
    drawn = np.empty(len(rows), dtype=np.int64)
    for part in _parts(rows, np.arange(len(rows)), thresholds):
        token_ids, cumulative = part.cumulative(thresholds, scratch)
        indices = inverse_cdf(cumulative, torch.from_numpy(uniforms[part.members])).numpy()
        if token_ids is not None:
            indices = token_ids[np.arange(len(indices)), indices]
        drawn[part.members] = indices
    return drawn


def inverse_cdf(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative weight exceeds the uniform's share of the total.

    Args:
        cumulative: [num_rows, size] float64, rising, the last above zero.
        uniforms: [num_rows] float64, strictly inside (0, 1).
    """
    totals = cumulative[:, -1:]
    indices = torch.searchsorted(cumulative, uniforms[:, None] * totals, right=True)
    # The product may round up to the total: then the last token that has any weight.
    last = torch.searchsorted(cumulative, totals.contiguous())
    return torch.minimum(indices, last)[:, 0]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that are summed in the same way."""

    rows: BlockedRows
    places: Ints
    """Of `rows`."""
    members: Ints
    """The same by their index among the rows asked for."""
    blocks: Ints | None
    """[num_members, m], blocks that hold all survivors, in rising order; None: all blocks."""

    def cumulative(
        self, thresholds: Float32s, scratch: Scratch
    ) -> tuple[Ints | None, torch.Tensor]:
        """Token ids (None: all, in order) and cumulative weights, [num_members, size].

        The weights are float64, in scratch memory.
        """
        token_ids = None
        if self.blocks is None:
            logits = self.rows.values(self.places, scratch)
        else:
            token_ids, values = self.rows.gather_blocks(self.places, self.blocks)
            logits = torch.from_numpy(values)
        lowest = thresholds[self.places, None]
        if lowest.max() > -np.inf:
            logits.masked_fill_(logits < torch.from_numpy(lowest), -torch.inf)
        highest = self.rows.maxima[self.places].max(axis=1, keepdims=True)
        weights = logits.sub_(torch.from_numpy(highest)).exp_()
        sums = scratch.sums(*weights.shape)
        return token_ids, torch.cumsum(weights, -1, dtype=torch.float64, out=sums)


def _parts(rows: BlockedRows, places: Ints, thresholds: Float32s) -> list[_Part]:
    if thresholds[places].max() == -np.inf:
        return [_Part(rows, places, np.arange(len(places)), None)]
    survive = rows.maxima[places] >= thresholds[places, None]
    counts = survive.sum(axis=1)
    is_sparse = counts * SPARSE_SHARE <= survive.shape[1]
    sparse, dense = np.flatnonzero(is_sparse), np.flatnonzero(~is_sparse)
    parts = []
    if len(sparse):
        # Stable: blocks with survivors first, in rising order; the rest only fills the row up.
        order = np.argsort(~survive[sparse], axis=1, kind="stable")
        parts.append(_Part(rows, places[sparse], sparse, order[:, : counts[sparse].max()]))
    if len(dense):
        parts.append(_Part(rows, places[dense], dense, None))
    return parts
