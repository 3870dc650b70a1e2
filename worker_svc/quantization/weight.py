"""The quantized weight of one linear layer: filled output by output, packed when it is complete.

Stands where `MergedLinear` had its matrix. Knows no files: the loader hands floats, or blocks as a
GGUF file has them, to the targets of `QuantizedWeight.target`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from worker_svc.quantization.forms import (
    GROUP_SIZE,
    GgmlBlocks,
    QuantizedForm,
    int4_from_blocks,
    int4_from_floats,
    int8_from_blocks,
    int8_from_floats,
)
from worker_svc.quantization.kernels import pack

Method = Literal["int8", "int4"]
"""`--quantization`, where it is on."""


class QuantizedWeight(nn.Module):
    """[sum(output_sizes), input_size] of weights in the form of a method."""

    def __init__(self, input_size: int, output_sizes: Sequence[int], method: Method) -> None:
        """No memory is taken before weights come.

        Raises:
            ValueError: Rows are no whole number of groups.
        """
        super().__init__()
        if input_size % GROUP_SIZE:
            raise ValueError(
                f"quantization {method} needs inputs in groups of {GROUP_SIZE}; a linear layer has "
                f"{input_size}: leave --quantization out"
            )
        self.input_size = input_size
        self.output_sizes = tuple(output_sizes)
        self.method = method
        self.parts = nn.ModuleList()
        self._forms: dict[int, QuantizedForm] = {}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, sum(output_sizes)], in the inputs' type
        if not self.parts:
            raise RuntimeError("the weights are not loaded")
        wide = inputs.float().contiguous()
        products = [part(wide) for part in self.parts]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return product.to(inputs.dtype)

    def target(self, index: int) -> QuantizedTarget:
        """Where the loader puts the weights of output `index`."""
        return QuantizedTarget(self, index)

    def accept(self, index: int, form: QuantizedForm) -> None:
        """Take the rows of output `index`; the last one makes it complete."""
        self._forms[index] = form
        if len(self._forms) == len(self.output_sizes):
            forms = [self._forms[index] for index in range(len(self.output_sizes))]
            self._forms = {}
            self.parts = nn.ModuleList(pack(forms))


class QuantizedTarget:
    """The rows of one output, as the loader sees them: it copies a tensor there and they are made.

    Each target is filled once.
    """

    def __init__(self, weight: QuantizedWeight, index: int) -> None:
        self._weight = weight
        self._index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._weight.output_sizes[self._index], self._weight.input_size)

    @property
    def nbytes(self) -> int:
        """About what they take in memory, for progress."""
        num_weights = self.shape[0] * self.shape[1]
        return num_weights // 2 if self._weight.method == "int4" else num_weights

    def copy_(self, tensor: torch.Tensor, /) -> None:
        """Quantize a float tensor of this shape."""
        make = int4_from_floats if self._weight.method == "int4" else int8_from_floats
        self._weight.accept(self._index, make(tensor))

    def take(self, packed: GgmlBlocks) -> bool:
        """Keep blocks of a file as they are, if the method has such a form; says whether it did."""
        make = int4_from_blocks if self._weight.method == "int4" else int8_from_blocks
        form = make(packed)
        if form is not None:
            self._weight.accept(self._index, form)
        return form is not None
