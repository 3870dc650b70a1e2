"""Weights as GGML's K formats have them: plain rounding, which the gguf package does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagewire.gguf import GgmlType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]


def encode(weights: Floats, ggml_type: GgmlType) -> Bytes:
    """[rows, columns] to [rows, bytes of a row]; columns are a multiple of 256."""
    blocks = weights.reshape(-1, 256)
    encoded = _q6_k(blocks) if ggml_type is GgmlType.Q6_K else _q4_or_5_k(blocks, ggml_type)
    return encoded.reshape(len(weights), -1)


def _q6_k(weights: Floats) -> Bytes:
    parts = weights.reshape(-1, 16, 16)
    half, scales = _scales(np.abs(parts).max(axis=2) / 31, 127)
    codes = _codes(parts, half * scales, -32, 31).reshape(-1, 2, 2, 64) + 32
    low, high = codes & 15, (codes >> 4).reshape(-1, 2, 4, 32)
    columns = (
        (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128),
        (high << np.arange(0, 8, 2)[:, None]).sum(axis=2).reshape(-1, 64),
        scales,
    )
    return _joined(*columns, _bytes_of(half))


def _q4_or_5_k(weights: Floats, ggml_type: GgmlType) -> Bytes:
    has_fifth_bit = ggml_type is GgmlType.Q5_K
    parts = weights.reshape(-1, 8, 32)
    least = np.minimum(parts.min(axis=2), 0)
    largest_code = 31 if has_fifth_bit else 15
    half, scales = _scales((parts.max(axis=2) - least) / largest_code, 63)
    offset_half, offsets = _scales(-least, 63)
    shifted = parts + (offset_half * offsets)[:, :, None]
    codes = _codes(shifted, half * scales, 0, largest_code)
    nibbles = (codes & 15).reshape(-1, 4, 2, 32)
    fifth = ((codes >> 4) << np.arange(8)[:, None]).sum(axis=1)
    return _joined(
        _bytes_of(half),
        _bytes_of(offset_half),
        _packed_scales(scales, offsets),
        *([fifth] if has_fifth_bit else []),
        (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(-1, 128),
    )


def _packed_scales(scales: Numbers, offsets: Numbers) -> Numbers:
    """Twelve bytes: four of each whole, the upper bits of the others in what those leave free."""
    first, last = scales[:, :4], scales[:, 4:]
    first_offsets, last_offsets = offsets[:, :4], offsets[:, 4:]
    columns = (
        first | last >> 4 << 6,
        first_offsets | last_offsets >> 4 << 6,
        last & 15 | (last_offsets & 15) << 4,
    )
    return np.concatenate(columns, axis=1)


def _scales(wanted: Numbers, largest: int) -> tuple[Numbers, Numbers]:
    """A float16 number for each block, and whole ones that make `wanted` of it."""
    half = (wanted.max(axis=1, keepdims=True) / largest).astype("<f2").astype(np.float32)
    return half, np.rint(wanted / np.where(half > 0, half, 1)).clip(0, largest).astype(np.int64)


def _codes(parts: Numbers, scales: Numbers, least: int, largest: int) -> Numbers:
    steps = np.where(scales > 0, scales, 1)[:, :, None]
    return np.rint(parts / steps).clip(least, largest).astype(np.int64)


def _bytes_of(half: Numbers) -> Numbers:
    return half.astype("<f2").view(np.uint8)


def _joined(*columns: Numbers) -> Bytes:
    return np.concatenate([column.astype(np.uint8) for column in columns], axis=1)
