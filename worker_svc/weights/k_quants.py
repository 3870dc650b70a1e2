"""GGML's K formats to float32, vectorized: super-blocks of 256 weights with scales of their scales.

A super-block has one 16-bit scale (and, but for Q6_K, one for minimums) over sub-blocks that each
have a small integer scale. Takes bytes and gives numbers, as `dequantize` does, which calls it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

_SCALES_BYTES = 12


def from_q4_k(data: Bytes) -> Floats:
    """[n_bytes] uint8 to [num_weights] float32; 144 bytes a super-block."""
    blocks = data.reshape(-1, 144)
    scales, minimums = _sub_block_scales(blocks)
    return (scales * _nibbles(blocks[:, 16:]) - minimums).ravel()


def from_q5_k(data: Bytes) -> Floats:
    """[n_bytes] uint8 to [num_weights] float32; 176 bytes a super-block."""
    blocks = data.reshape(-1, 176)
    scales, minimums = _sub_block_scales(blocks)
    # Bit s of byte i is the fifth bit of weight i of sub-block s.
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (blocks[:, None, 16:48] >> bits) & np.uint8(1)
    return (scales * (_nibbles(blocks[:, 48:]) | (fifth << np.uint8(4))) - minimums).ravel()


def from_q6_k(data: Bytes) -> Floats:
    """[n_bytes] uint8 to [num_weights] float32; 210 bytes a super-block."""
    blocks = data.reshape(-1, 210)
    low = blocks[:, :128].reshape(-1, 2, 1, 64)  # of each half, 32 weights a quarter
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.array((0, 4), dtype=np.uint8).reshape(1, 1, 2, 1)
    low_bits = ((low >> shifts) & np.uint8(0x0F)).reshape(-1, 2, 4, 32)
    pairs = np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1)
    high_bits = ((high >> pairs) & np.uint8(3)) << np.uint8(4)
    weights = ((low_bits | high_bits).view(np.int8) - np.int8(32)).reshape(-1, 16, 16)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (scales[:, :, None] * weights).ravel()


def _sub_block_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minimums of the eight sub-blocks, each [num_blocks, 8, 1] float32.

    Twelve bytes hold them with 6 bits each: four scales and four minimums in the low bits of the
    first eight, the other four of each in the last four bytes and in those bytes' high bits.
    """
    first = blocks[:, 4:8]
    second = blocks[:, 8:12]
    third = blocks[:, 12 : 4 + _SCALES_BYTES]
    six, four, two = np.uint8(0x3F), np.uint8(0x0F), np.uint8(0x30)
    scales = np.concatenate((first & six, (third & four) | ((first >> 2) & two)), axis=1)
    minimums = np.concatenate((second & six, (third >> 4) | ((second >> 2) & two)), axis=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minimums)[:, :, None]


def _nibbles(packed: Bytes) -> Bytes:
    """[num_blocks, 128] bytes to [num_blocks, 8, 32]: of 32 bytes the low halves, then the high."""
    groups = packed.reshape(-1, 4, 1, 32)
    shifts = np.array((0, 4), dtype=np.uint8).reshape(1, 1, 2, 1)
    return ((groups >> shifts) & np.uint8(0x0F)).reshape(-1, 8, 32)


def _half(blocks: Bytes, offset: int) -> Floats:
    """The 16-bit float at `offset` of every block, [num_blocks, 1]."""
    column = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return column.view("<f2").astype(np.float32)
