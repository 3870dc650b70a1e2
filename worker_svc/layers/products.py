"""Products of large float32 weights on processors for which MKL has slow kernels.

MKL gives one order of sums for any number of rows (`MKL_CBWR`), and is slow at it on processors
that are not Intel's: oneDNN takes a half to two thirds of its time for large weights
(docs/benchmarks.md). A row's numbers must not depend on the rows beside it there, either: that is
tried out for each shape before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""[num_rows, outputs] of [num_rows, inputs], weights [outputs, inputs] and perhaps a bias."""

_CPUINFO = Path("/proc/cpuinfo")
_MIN_WEIGHTS = 1 << 20
"""Below, a call's own time is more than what is gained."""
_TRIED_ROWS = (1, 2, 5, 9, 16, 31, 64, 127)
_MOST_ROWS = 130
"""A prompt that is computed again after a loss is one product of many rows, a decode one of few."""

functional_product: Product = functional.linear


def onednn_product(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product by oneDNN."""
    # A single row is multiplied by another kernel, in an order of its own.
    rows = inputs.repeat(2, 1) if len(inputs) == 1 else inputs
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return output[: len(inputs)]


def mkl_is_slow(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether this is a processor for which MKL has none of its fast kernels."""
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    vendor = re.search(r"^vendor_id\s*: (\S+)", text, re.MULTILINE)
    return vendor is not None and vendor[1] != "GenuineIntel"


class ProductChoice:
    """Chooses the product of each weight of a model; shapes that come again are tried once."""

    def __init__(self, product: Product = onednn_product) -> None:
        """Choose between this product and PyTorch's own."""
        self._product = product
        self._keeps_bits: dict[tuple[int, ...], bool] = {}

    def of(self, weight: torch.Tensor | nn.Module) -> Product:
        """Return the product to use.

        Args:
            weight: [outputs, inputs]; or what multiplies by itself.
        """
        if not isinstance(weight, torch.Tensor) or not _is_fit(weight):
            return functional_product
        shape = tuple(weight.shape)
        if shape not in self._keeps_bits:
            self._keeps_bits[shape] = _keeps_bits(self._product, weight)
        return self._product if self._keeps_bits[shape] else functional_product


def _is_fit(weight: torch.Tensor) -> bool:
    is_kind = weight.dtype is torch.float32 and weight.device.type == "cpu"
    is_there = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # it is not PyTorch's public API
    return is_kind and weight.numel() >= _MIN_WEIGHTS and is_there


@torch.inference_mode()
def _keeps_bits(product: Product, weight: torch.Tensor) -> bool:
    """Whether rows are the same whatever is beside them."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_MOST_ROWS, weight.shape[1], generator=generator)
    whole = product(rows, weight, None)
    # The last ones: they lie elsewhere in the kernels' blocks of rows when they are alone.
    return all(
        torch.equal(product(rows[-count:], weight, None), whole[-count:]) for count in _TRIED_ROWS
    )
