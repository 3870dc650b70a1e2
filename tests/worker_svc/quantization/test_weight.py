"""A linear layer whose weights are quantized while they come."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from pagewire.gguf import GgmlType
from worker_svc.layers.linear import MergedLinear, quantize_linears
from worker_svc.quantization.forms import GgmlBlocks
from worker_svc.quantization.weight import Method, QuantizedTarget

METHODS = get_args(Method)
ERRORS = {"int4": 0.09, "int8": 0.01}
"""Relative to the norm of a product with normal weights."""


def filled(method: Method, bias: bool = False) -> tuple[MergedLinear, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(80, 64, generator=generator)
    linear = MergedLinear(64, (48, 32), bias)
    linear.quantize(method)
    for index, rows in enumerate(torch.split(weights, [48, 32])):
        linear.shard("weight", index).copy_(rows)
    return linear, weights


@pytest.mark.parametrize("method", METHODS)
def test_products_are_close_to_those_of_the_floats(method: Method) -> None:
    linear, weights = filled(method)
    inputs = torch.randn(9, 64)
    expected = inputs @ weights.T
    assert float((linear(inputs) - expected).norm() / expected.norm()) < ERRORS[method]


@pytest.mark.parametrize("method", METHODS)
def test_outputs_have_the_type_of_inputs_and_the_bias(method: Method) -> None:
    linear, _ = filled(method, bias=True)
    assert linear.bias is not None
    linear.bias.data = torch.full((80,), 3.0)
    inputs = torch.randn(9, 64)
    torch.testing.assert_close(linear(inputs) - linear.project(inputs), torch.full((9, 80), 3.0))
    linear.bias.data = linear.bias.data.bfloat16()
    assert linear(inputs.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("method", "bytes_a_weight"), [("int4", 0.5 + 8 / 32), ("int8", 1 + 4 / 64)]
)
def test_nothing_but_the_packed_weights_stays(method: Method, bytes_a_weight: float) -> None:
    linear, _ = filled(method)
    assert sum(parameter.nbytes for parameter in linear.parameters()) == 80 * 64 * bytes_a_weight


def test_blocks_that_the_method_knows_are_taken_as_they_are() -> None:
    linear = MergedLinear(32, (16,), bias=False)
    linear.quantize("int4")
    target = linear.shard("weight", 0)
    assert isinstance(target, QuantizedTarget)
    blocks = np.zeros((16, 1, 18), dtype=np.uint8)
    assert not target.take(GgmlBlocks(GgmlType.Q8_0, np.zeros((16, 1, 34), dtype=np.uint8)))
    blocks[:, 0, :2] = np.array([2.0], dtype="<f2").view(np.uint8)
    blocks[:, 0, 2:] = 0x98  # codes 8 and 9, weights 0 and 2
    assert target.take(GgmlBlocks(GgmlType.Q4_0, blocks))
    assert linear(torch.ones(1, 32)).tolist() == [[32.0] * 16]


def test_inputs_that_are_no_whole_groups_are_refused() -> None:
    model = torch.nn.ModuleList([MergedLinear(40, (16,), bias=False)])
    with pytest.raises(ValueError, match=r"groups of 32; a linear layer has 40: leave"):
        quantize_linears(model, "int8")


def test_an_empty_layer_says_so() -> None:
    linear = MergedLinear(32, (16,), bias=False)
    linear.quantize("int8")
    with pytest.raises(RuntimeError, match="not loaded"):
        linear(torch.ones(1, 32))
