"""Linear layers whose weights lie apart in a checkpoint and together in memory.

One GEMM for Q, K and V (and for gate and up) instead of several small ones. Knows nothing of where
the shards come from: `weights.load` hands each to `load_shard`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class MergedLinear(nn.Module):
    """A linear layer of several outputs side by side, in the order of `output_sizes`."""

    def __init__(self, input_size: int, output_sizes: Sequence[int], bias: bool) -> None:
        super().__init__()
        self.output_sizes = tuple(output_sizes)
        total = sum(self.output_sizes)
        self.weight = nn.Parameter(torch.empty(total, input_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(total), requires_grad=False) if bias else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, sum(output_sizes)]
        return functional.linear(hidden_states, self.weight, self.bias)

    def shard(self, parameter: str, index: int) -> torch.Tensor:
        """The part of `weight` or `bias` that output `index` owns, as a view to write to."""
        tensor: torch.Tensor = getattr(self, parameter)
        start = sum(self.output_sizes[:index])
        return tensor.narrow(0, start, self.output_sizes[index])
