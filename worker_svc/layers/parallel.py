"""Layers whose weights are split over the ranks of a group.

Column-parallel layers need no class of their own: a `MergedLinear` of the rank's outputs. Here are
those that talk to the other ranks. With one rank none of this is used.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from worker_svc.layers.linear import MergedLinear
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.parallel.shards import Span


class RowParallelLinear(MergedLinear):
    """A linear layer of which each rank has some input columns; the outputs are added up."""

    def __init__(
        self, input_size: int, output_size: int, bias: bool, groups: ParallelGroups
    ) -> None:
        super().__init__(input_size, (output_size,), bias)
        self._groups = groups

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # [num_tokens, the rank's input_size] -> [num_tokens, output_size]
        output = self._groups.sum(self.project(hidden_states))
        # Once, not once a rank.
        return output if self.bias is None else output + self.bias


def make_row_linear(
    input_size: int, output_size: int, bias: bool, groups: ParallelGroups
) -> MergedLinear:
    """A layer over the rank's `input_size` columns of the input."""
    if groups.layout.tp_size == 1:
        return MergedLinear(input_size, (output_size,), bias)
    return RowParallelLinear(input_size, output_size, bias, groups)


class VocabularyShard:
    """Embedding and head of a vocabulary that is split over ranks.

    Each rank has equally many rows, so that logits can be gathered; those past its part of the
    vocabulary are filled up with zeros, and cut off again.
    """

    def __init__(self, vocabulary: Span, groups: ParallelGroups) -> None:
        self.num_rows = -(-vocabulary.total // groups.layout.tp_size)
        self._vocabulary = vocabulary
        self._groups = groups

    def embed(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Embeddings [num_tokens, hidden_size] of `token_ids` [num_tokens].

        Args:
            token_ids: Of the whole vocabulary.
            weight: [num_rows, hidden_size] of this rank.
        """
        local = token_ids - self._vocabulary.start
        elsewhere = (local < 0) | (local >= self._vocabulary.size)
        rows = functional.embedding(local.masked_fill(elsewhere, 0), weight)
        return self._groups.sum(rows.masked_fill(elsewhere.unsqueeze(1), 0.0))

    def gather_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] of all ranks, equal on each of them."""
        return self._groups.gather_columns(logits)[:, : self._vocabulary.total]
