"""Codes and scales against the floats, or the blocks, that they are made of."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from pagewire.gguf import GgmlType
from worker_svc.quantization.forms import (
    GROUP_SIZE,
    GgmlBlocks,
    Int4Groups,
    Int8Groups,
    int4_from_blocks,
    int4_from_floats,
    int8_from_blocks,
    int8_from_floats,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gguf


def random_weights(rows: int = 24, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def ggml_blocks(weights: torch.Tensor, name: str) -> tuple[GgmlBlocks, torch.Tensor]:
    """Blocks of the gguf package, and the weights that they stand for."""
    kind = gguf.GGMLQuantizationType[name]
    stored = np.ascontiguousarray(gguf.quantize(weights.numpy(), kind)).view(np.uint8)
    expected = torch.from_numpy(gguf.dequantize(stored, kind)).view(weights.shape)
    shape = (len(weights), weights.shape[1] // GROUP_SIZE, -1)
    return GgmlBlocks(GgmlType[name], stored.reshape(shape)), expected


def values(form: Int4Groups | Int8Groups) -> torch.Tensor:
    groups = form.codes.float().view(len(form.codes), -1, GROUP_SIZE) * form.scales[..., None]
    if isinstance(form, Int4Groups):
        groups = groups + form.offsets[..., None]
    return groups.flatten(1)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
def test_four_bit_blocks_keep_their_weights(name: str) -> None:
    packed, expected = ggml_blocks(random_weights(), name)
    form = int4_from_blocks(packed)
    assert form is not None
    assert int(form.codes.max()) == 15
    torch.testing.assert_close(values(form), expected, rtol=1e-6, atol=1e-6)


def test_eight_bit_blocks_keep_their_weights() -> None:
    packed, expected = ggml_blocks(random_weights(), "Q8_0")
    form = int8_from_blocks(packed)
    assert form is not None
    assert torch.equal(values(form), expected)


def test_blocks_of_another_type_have_no_such_form() -> None:
    q8, _ = ggml_blocks(random_weights(), "Q8_0")
    q4, _ = ggml_blocks(random_weights(), "Q4_1")
    assert int4_from_blocks(q8) is None
    assert int8_from_blocks(q4) is None


def test_four_bits_of_floats_are_off_by_half_a_step_at_most() -> None:
    weights = random_weights()
    form = int4_from_floats(weights)
    error = (values(form) - weights).abs().view(len(weights), -1, GROUP_SIZE).amax(-1)
    assert bool((error <= form.scales / 2 * 1.001).all())


def test_eight_bits_of_floats_are_off_by_half_a_step_at_most() -> None:
    weights = random_weights()
    form = int8_from_floats(weights)
    found = form.codes.float() * form.scales[:, None]
    assert bool(((found - weights).abs().amax(1) <= form.scales / 2 * 1.001).all())
    assert int(form.codes.abs().max()) == 127


def test_equal_weights_keep_their_value() -> None:
    weights = torch.full((2, 64), 0.75)
    assert torch.equal(values(int4_from_floats(weights)), weights)
    zeros = torch.zeros(2, 64)
    assert int(int8_from_floats(zeros).codes.abs().max()) == 0
    assert torch.equal(values(int4_from_floats(zeros)), zeros)
