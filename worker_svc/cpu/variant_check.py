"""Whether a variant of the kernels computes what it should on this processor.

A variant is written for processors that whoever built it need not have. Before one is used, small
products, attention and the search of the largest value are compared with plain numpy; one that
differs is left out, with a warning.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt
import torch

from pagewire.gguf import GgmlType
from pagewire.kit.logs import get_logger
from worker_svc.attention.base import AttentionMetadata, AttentionSpec
from worker_svc.cpu.block_forms import KINDS
from worker_svc.cpu.kernels import Kernels, Pool, load_library, variants
from worker_svc.cpu.packing import PackedMatrix
from worker_svc.cpu.paged_attention import CpuAttentionBackend
from worker_svc.cpu.structs import Largest
from worker_svc.quantization.forms import GgmlBlocks
from worker_svc.weights.dequantize import dequantize

log = get_logger("worker_svc.cpu")

Floats = npt.NDArray[np.float32]

_ROWS = 24
_COLUMNS = 768
"""Whole blocks of every type, and more than are unpacked at once for many tokens."""
_NUM_TOKENS = (1, 2, 3, 4, 5, 7, 13, 19, 48)
"""The last are many: blocks of them, and one left; an odd number that is more than a tile has, and
full tiles."""
_WITH_OFFSETS = (GgmlType.Q4_1, GgmlType.Q4_K, GgmlType.Q5_K)
_TOLERANCE = 0.003
"""Of a result's largest value: keys and values have 11 bits, activations 16."""


@functools.cache
def best_kernels() -> Kernels | None:
    """The best variant that is right; None: there is none, as the log says."""
    library = load_library()
    for kernels in () if library is None else variants(library):
        problem = problem_of(kernels)
        if problem is None:
            log.info("cpu_kernels", variant=kernels.name)
            return kernels
        log.warning("cpu_kernels_wrong", variant=kernels.name, problem=problem)
    return None


def problem_of(kernels: Kernels) -> str | None:
    """What the variant computes wrong; None: nothing that was looked at."""
    random = np.random.default_rng(0)
    for ggml_type in KINDS:
        if not _multiplies(kernels, ggml_type, random):
            return f"products with {ggml_type.name}"
    if not _finds_largest(kernels, random):
        return "the largest of many values"
    return None if _attends(kernels, random) else "attention"


def _multiplies(kernels: Kernels, ggml_type: GgmlType, random: np.random.Generator) -> bool:
    blocks = random_blocks(ggml_type, _ROWS, _COLUMNS, random)
    matrix = PackedMatrix(kernels, ggml_type, _ROWS, _COLUMNS)
    matrix.take(GgmlBlocks(ggml_type, blocks))
    weights = dequantize(blocks.reshape(-1), ggml_type, "check").reshape(_ROWS, _COLUMNS)
    inputs = [random.standard_normal((count, _COLUMNS), np.float32) for count in _NUM_TOKENS]
    return all(_is_close(matrix.multiply(given), given @ weights.T) for given in inputs)


def _attends(kernels: Kernels, random: np.random.Generator) -> bool:
    length, dim, block_size = 19, 80, 16
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=1, head_dim=dim, scale=0.25, sliding_windows=[None]
    )
    backend = CpuAttentionBackend(kernels, Pool(kernels, 1), spec)
    backend.allocate_kv_cache(3, block_size)
    query, key, value = (
        random.standard_normal((length, heads, dim), np.float32) for heads in (2, 1, 1)
    )
    scores = np.einsum("qhd,kd->hqk", query, key[:, 0]) * spec.scale
    weights = np.exp(scores) * np.tri(length)
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("hqk,kd->qhd", weights, value[:, 0]).reshape(length, -1)
    # Many queries, then the last alone: few read the cache in another way.
    for first in (0, length - 1):
        attention = backend.begin_step(
            AttentionMetadata(
                slot_mapping=torch.arange(first, length) + block_size,
                block_tables=torch.tensor([[1, 2]]),
                seq_lens=[length],
                query_start_loc=[0, length - first],
                num_single_rows=0,
            )
        )
        output = attention(0, *(torch.from_numpy(array[first:]) for array in (query, key, value)))
        if not _is_close(output.numpy(), expected[first:].astype(np.float32)):
            return False
    return True


def _finds_largest(kernels: Kernels, random: np.random.Generator) -> bool:
    # Few values, so that many are equal; the sizes leave a rest behind whole vectors.
    given = [random.integers(-5, 5, count).astype(np.float32) for count in (1, 31, 64, 100, 163)]
    if any(
        largest_of(kernels, values) != (float(values.max()), int(values.argmax()))
        for values in given
    ):
        return False
    # In each lane of a vector, of either of two that are looked at together, and in the rest.
    for place in range(len(given[-1])):
        spoiled = given[-1].copy()
        spoiled[place] = np.nan
        if not np.isnan(largest_of(kernels, spoiled, pieces=1)[0]):
            return False
    return True


def largest_of(kernels: Kernels, values: Floats, pieces: int = 2) -> tuple[float, int]:
    """The largest of values [any number] and its lowest place, looked at piece by piece."""
    best, first = Largest(-np.inf, 0), 0
    for piece in np.array_split(np.ascontiguousarray(values), pieces):
        address = piece.ctypes.data
        kernels.native.pw_take_largest(
            kernels.handle, address, len(piece), first, ctypes.byref(best)
        )
        first += len(piece)
    return best.value, best.place


def random_blocks(
    ggml_type: GgmlType, rows: int, columns: int, random: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Blocks [rows, blocks of a row, bytes of a block]: any codes, float16 scales of about 1."""
    shape = rows, columns // ggml_type.block_weights, ggml_type.block_bytes
    if ggml_type is GgmlType.BF16:
        # The upper halves of float32 numbers.
        bits = random.standard_normal((rows, columns), np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype("<u2").view(np.uint8).reshape(shape)
    blocks = random.integers(0, 256, shape, np.uint8)
    place = halves_of(ggml_type)
    num_halves = (place.stop - place.start) // 2
    halves = random.standard_normal((*shape[:2], num_halves)).astype("<f2")
    blocks[:, :, place] = halves.view(np.uint8)
    return blocks


def halves_of(ggml_type: GgmlType) -> slice:
    """The bytes of a block that are float16 numbers."""
    if ggml_type is GgmlType.Q6_K:
        return slice(208, 210)
    return slice(0, 4 if ggml_type in _WITH_OFFSETS else 2)


def _is_close(found: Floats, expected: Floats) -> bool:
    largest = float(np.abs(expected).max())
    return bool(np.isfinite(found).all()) and bool(
        np.abs(found - expected).max() <= _TOLERANCE * largest
    )
