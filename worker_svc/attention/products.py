"""Batched matrix products whose rows do not depend on the rows and matrices beside them.

With several threads BLAS divides a single matrix, or one of many rows, among them; the part of a
thread may be so small that another kernel adds it up, in another order. Matrices of a bounded size
of which there are two at least go to one thread each.
"""

from __future__ import annotations

import torch

MAX_ROWS = 48
"""Of one matrix: a multiple of what the kernels take at a time."""


def invariant_bmm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[batch, rows, k] times [batch, k, columns], in parts of `MAX_ROWS` rows.

    Args:
        left: Of at least as many rows as the kernels need to add in one order.
        right: One matrix for each of `left`.
    """
    if left.shape[0] == 1:
        pair = invariant_bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))
        return pair[:1]
    num_rows = left.shape[1]
    if num_rows <= MAX_ROWS:
        return torch.bmm(left, right)
    output = left.new_empty(left.shape[0], num_rows, right.shape[2])
    for end in range(MAX_ROWS, num_rows + MAX_ROWS, MAX_ROWS):
        # The last part reaches back, so that it has as many rows as the others.
        part = slice(min(end, num_rows) - MAX_ROWS, min(end, num_rows))
        output[:, part] = torch.bmm(left[:, part], right)
    return output
