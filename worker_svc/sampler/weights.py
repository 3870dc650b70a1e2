"""Weights of the tokens that survive truncation, their sums, and the token that a uniform means.

Sums run in vocabulary order in float64. A token without weight changes no sum, so rows of which
few tokens survive are summed over the blocks that hold them, with the same bits as over the whole
vocabulary. Knows nothing of parameters.
"""

from __future__ import annotations

import numpy as np
import torch

from worker_svc.sampler.metadata import Float64s
from worker_svc.sampler.selection import BlockedRows, Float32s, Ints

SPARSE_SHARE = 8
"""Rows whose survivors lie in at most one of so many blocks are summed over those alone."""


def total_weights(
    rows: BlockedRows, places: Ints, maxima: Float32s, thresholds: Float32s
) -> Float64s:
    """Sum of the weights of some rows, [len(places)].

    Args:
        rows: Logits divided by the temperature.
        places: Those to sum up.
        maxima: [num_rows], the largest logit of each row.
        thresholds: [num_rows], the lowest logit that survives.
    """
    totals = np.empty(len(places))
    for part in _parts(rows, places, thresholds):
        _, cumulative = part.cumulative(maxima, thresholds)
        totals[part.members] = cumulative[:, -1].numpy()
    return totals


def draw_tokens(
    rows: BlockedRows, maxima: Float32s, thresholds: Float32s, uniforms: Float64s
) -> Ints:
    """Inverse CDF in vocabulary order, [num_rows].

    Args:
        rows: Logits divided by the temperature.
        maxima: [num_rows], the largest logit of each row, finite.
        thresholds: [num_rows], the lowest logit that survives.
        uniforms: [num_rows], strictly inside (0, 1).
    """
    drawn = np.empty(len(uniforms), dtype=np.int64)
    for part in _parts(rows, np.arange(len(uniforms)), thresholds):
        token_ids, cumulative = part.cumulative(maxima, thresholds)
        places = inverse_cdf(cumulative, torch.from_numpy(uniforms[part.members]))
        if token_ids is not None:
            places = np.take_along_axis(token_ids, places[:, None], axis=1)[:, 0]
        drawn[part.members] = places
    return drawn


def inverse_cdf(cumulative: torch.Tensor, uniforms: torch.Tensor) -> Ints:
    """First index whose cumulative weight exceeds the uniform's share of the total.

    Args:
        cumulative: [num_rows, size] float64, rising, the last above zero.
        uniforms: [num_rows] float64, strictly inside (0, 1).
    """
    totals = cumulative[:, -1:]
    indices = torch.searchsorted(cumulative, uniforms[:, None] * totals, right=True)
    # The product may round up to the total: then the last token that has any weight.
    last = torch.searchsorted(cumulative, totals.contiguous())
    token_ids: Ints = torch.minimum(indices, last)[:, 0].numpy()
    return token_ids


class _Part:
    """Rows that are summed in the same way."""

    def __init__(self, rows: BlockedRows, places: Ints, members: Ints, blocks: Ints | None) -> None:
        self._rows = rows
        self._places = places
        self.members = members
        """Indices of the rows among those asked for."""
        self._blocks = blocks
        """[num_members, m], blocks that hold all survivors, in rising order; None: all blocks."""

    def cumulative(
        self, maxima: Float32s, thresholds: Float32s
    ) -> tuple[Ints | None, torch.Tensor]:
        """Token ids (None: all, in order) and cumulative float64 weights, [num_members, size]."""
        token_ids, logits = None, self._rows.logits
        if self._blocks is not None:
            token_ids, values = self._rows.gather_blocks(self._places, self._blocks)
            logits = torch.from_numpy(values)
        elif len(self._places) < len(logits):
            logits = logits[torch.from_numpy(self._places)]
        highest, lowest = maxima[self._places, None], thresholds[self._places, None]
        weights = (logits - torch.from_numpy(highest)).exp_()
        if lowest.max() > -np.inf:
            weights *= logits >= torch.from_numpy(lowest)
        return token_ids, weights.cumsum(-1, dtype=torch.float64)


def _parts(rows: BlockedRows, places: Ints, thresholds: Float32s) -> list[_Part]:
    survive = rows.maxima.numpy()[places] >= thresholds[places, None]
    counts = survive.sum(axis=1)
    num_blocks = survive.shape[1]
    sparse = counts * SPARSE_SHARE <= num_blocks
    parts = []
    if sparse.any():
        members = np.flatnonzero(sparse)
        # Stable: blocks with survivors first, in rising order; the rest only fills the row up.
        order = np.argsort(~survive[members], axis=1, kind="stable")
        parts.append(_Part(rows, places[members], members, order[:, : counts[members].max()]))
    if not sparse.all():
        members = np.flatnonzero(~sparse)
        parts.append(_Part(rows, places[members], members, None))
    return parts
