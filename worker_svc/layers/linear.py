"""Linear layers whose weights lie apart in a checkpoint and together in memory.

One GEMM for Q, K and V (and for gate and up) instead of several small ones. Knows nothing of where
the shards come from: `weights.load` hands each to `load_shard`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from worker_svc.layers.products import functional_product
from worker_svc.quantization.weight import Method, QuantizedWeight
from worker_svc.weights.slots import SlotTarget


class MergedLinear(nn.Module):
    """A linear layer of several outputs side by side, in the order of `output_sizes`."""

    def __init__(self, input_size: int, output_sizes: Sequence[int], bias: bool) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_sizes = tuple(output_sizes)
        total = sum(self.output_sizes)
        self.weight: nn.Parameter | QuantizedWeight = nn.Parameter(
            torch.empty(total, input_size), requires_grad=False
        )
        self.bias = nn.Parameter(torch.empty(total), requires_grad=False) if bias else None
        self.product = functional_product

    def quantize(self, method: Method) -> None:
        """Have the weights quantized when they are loaded; before that the layer is empty.

        Raises:
            ValueError: The layer's inputs are no whole number of groups.
        """
        quantized = QuantizedWeight(self.input_size, self.output_sizes, method)
        del self.weight
        self.weight = quantized

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, sum(output_sizes)]
        if isinstance(self.weight, QuantizedWeight):
            output = self.project(hidden_states)
            return output if self.bias is None else output + self.bias
        return self.product(hidden_states, self.weight, self.bias)

    def project(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The product alone, without the bias."""
        if isinstance(self.weight, QuantizedWeight):
            product: torch.Tensor = self.weight(hidden_states)
            return product
        return self.product(hidden_states, self.weight, None)

    def shard(self, parameter: str, index: int) -> SlotTarget:
        """The part of `weight` or `bias` that output `index` owns, to write to."""
        tensor: nn.Parameter | QuantizedWeight = getattr(self, parameter)
        if isinstance(tensor, QuantizedWeight):
            return tensor.target(index)
        start = sum(self.output_sizes[:index])
        return tensor.data.narrow(0, start, self.output_sizes[index])


def quantize_linears(model: nn.Module, method: Method) -> None:
    """Have the weights of all linear layers of a model quantized when they are loaded.

    Raises:
        ValueError: A layer's inputs are no whole number of groups.
    """
    for module in model.modules():
        if isinstance(module, MergedLinear):
            module.quantize(method)
