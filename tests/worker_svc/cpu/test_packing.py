from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pagewire.gguf import GgmlType
from worker_svc.cpu.block_forms import FLOATS, KINDS
from worker_svc.cpu.kernels import Kernels
from worker_svc.cpu.packing import MAX_TOKENS, PackedMatrix
from worker_svc.cpu.variant_check import halves_of, random_blocks
from worker_svc.quantization.forms import GROUP_SIZE, GgmlBlocks
from worker_svc.weights.dequantize import dequantize

Floats = npt.NDArray[np.float32]

TYPES = pytest.mark.parametrize("ggml_type", list(KINDS), ids=lambda kind: kind.name)
SHAPES = pytest.mark.parametrize(
    ("rows", "num_blocks"), [(16, 1), (48, 3), (7, 2), (41, 5), (24, 38)]
)


def make(
    kernels: Kernels, ggml_type: GgmlType, rows: int, num_blocks: int
) -> tuple[PackedMatrix, Floats]:
    """A random matrix, and its weights."""
    columns = num_blocks * max(ggml_type.block_weights, GROUP_SIZE)
    blocks = random_blocks(ggml_type, rows, columns, np.random.default_rng(rows))
    matrix = PackedMatrix(kernels, ggml_type, rows, columns)
    assert matrix.take(GgmlBlocks(ggml_type, blocks))
    return matrix, dequantize(blocks.reshape(-1), ggml_type, "test").reshape(rows, columns)


def rounded(inputs: Floats) -> Floats:
    """What is left of activations: 16 bits, and a scale for each group."""
    groups = inputs.reshape(len(inputs), -1, GROUP_SIZE)
    scales = np.abs(groups).max(axis=2, keepdims=True) / np.float32(2**15 - 1)
    return (np.rint(groups / scales) * scales).reshape(inputs.shape)


@TYPES
@SHAPES
def test_rows_come_back_as_the_file_has_them(
    kernels: Kernels, ggml_type: GgmlType, rows: int, num_blocks: int
) -> None:
    matrix, weights = make(kernels, ggml_type, rows, num_blocks)
    found = np.stack([matrix.row(index) for index in range(rows)])
    np.testing.assert_array_equal(found, weights)


@TYPES
@SHAPES
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 33])
def test_a_product_is_that_of_what_is_read(
    kernels: Kernels, ggml_type: GgmlType, rows: int, num_blocks: int, num_tokens: int
) -> None:
    matrix, weights = make(kernels, ggml_type, rows, num_blocks)
    inputs = np.random.default_rng(1).standard_normal((num_tokens, matrix.columns), np.float32)
    read = inputs if ggml_type in FLOATS else rounded(inputs)
    expected = read.astype(np.float64) @ weights.T.astype(np.float64)
    # A value half way between two codes may go to either.
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(matrix.multiply(inputs), expected, rtol=0, atol=tolerance)


@TYPES
def test_a_product_keeps_close_to_the_exact_one(kernels: Kernels, ggml_type: GgmlType) -> None:
    matrix, weights = make(kernels, ggml_type, 64, 18)
    inputs = np.random.default_rng(2).standard_normal((9, matrix.columns), np.float32)
    expected = inputs @ weights.T
    error = np.linalg.norm(matrix.multiply(inputs) - expected) / np.linalg.norm(expected)
    assert error < 5e-5


@TYPES
@SHAPES
def test_a_row_of_tokens_is_the_same_whatever_is_beside_it(
    kernels: Kernels, ggml_type: GgmlType, rows: int, num_blocks: int
) -> None:
    matrix, _ = make(kernels, ggml_type, rows, num_blocks)
    inputs = np.random.default_rng(3).standard_normal((MAX_TOKENS, matrix.columns), np.float32)
    whole = matrix.multiply(inputs)
    for count in (1, 2, 3, 4, 5, 11, 12, 15, 64):
        np.testing.assert_array_equal(matrix.multiply(inputs[:count]), whole[:count])
    np.testing.assert_array_equal(matrix.multiply(inputs[100:101]), whole[100:101])


@TYPES
def test_the_largest_codes_do_not_overflow(kernels: Kernels, ggml_type: GgmlType) -> None:
    columns = 2 * max(ggml_type.block_weights, GROUP_SIZE)
    blocks = random_blocks(ggml_type, 16, columns, np.random.default_rng(4))
    place = halves_of(ggml_type)
    ones = np.ones((place.stop - place.start) // 2, "<f2").view(np.uint8)
    for byte in (0xFF, 0x80, 0x7F, 0x00):
        blocks[:] = byte
        blocks[:, :, place] = ones
        matrix = PackedMatrix(kernels, ggml_type, 16, columns)
        matrix.take(GgmlBlocks(ggml_type, blocks))
        weights = dequantize(blocks.reshape(-1), ggml_type, "test").reshape(16, columns)
        for sign in (1, -1):
            inputs = np.full((5, columns), sign, np.float32)
            np.testing.assert_allclose(matrix.multiply(inputs), inputs @ weights.T, rtol=1e-4)


@TYPES
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_token_alone(
    kernels: Kernels, ggml_type: GgmlType, bad: float
) -> None:
    matrix, _ = make(kernels, ggml_type, 48, 3)
    inputs = np.random.default_rng(5).standard_normal((6, matrix.columns), np.float32)
    good = matrix.multiply(inputs)
    inputs[2, 40] = bad
    spoiled = matrix.multiply(inputs)
    assert not np.isfinite(spoiled[2]).any()
    np.testing.assert_array_equal(np.delete(spoiled, 2, 0), np.delete(good, 2, 0))


def test_zeros_give_the_bias(kernels: Kernels) -> None:
    matrix, _ = make(kernels, GgmlType.Q4_1, 41, 2)
    bias = np.arange(41, dtype=np.float32)
    found = matrix.multiply(np.zeros((5, 64), np.float32), bias)
    np.testing.assert_array_equal(found, np.tile(bias, (5, 1)))


def test_blocks_of_another_type_or_shape_are_refused(kernels: Kernels) -> None:
    matrix = PackedMatrix(kernels, GgmlType.Q4_1, 16, 64)
    blocks = random_blocks(GgmlType.Q8_0, 16, 64, np.random.default_rng(0))
    assert not matrix.take(GgmlBlocks(GgmlType.Q8_0, blocks))
    narrow = random_blocks(GgmlType.Q4_1, 16, 32, np.random.default_rng(0))
    with pytest.raises(ValueError, match="shape"):
        matrix.take(GgmlBlocks(GgmlType.Q4_1, narrow))
    for ggml_type in (GgmlType.Q4_1, GgmlType.BF16):
        with pytest.raises(ValueError, match="no whole number"):
            PackedMatrix(kernels, ggml_type, 16, 40)
