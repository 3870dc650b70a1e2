"""GGML's block formats to float32, vectorized.

A block is 32 weights behind a 16-bit scale (and, for the `_1` forms, a 16-bit minimum); 4-bit forms
hold weight i in the low half of byte i and weight i + 16 in its high half. The K formats are in
`k_quants`. Knows nothing of GGUF files: it takes bytes and gives numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pagewire.gguf import GgmlType
from worker_svc.weights.k_quants import from_q4_k, from_q5_k, from_q6_k
from worker_svc.weights.source import WeightsError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK_WEIGHTS = 32


def dequantize(data: Bytes, ggml_type: GgmlType, name: str) -> Floats:
    """All weights of a tensor as a flat float32 array.

    Args:
        data: The tensor's bytes.
        ggml_type: Their format.
        name: The tensor's name, for the error.

    Raises:
        WeightsError: The format is not implemented.
    """
    decode = _DECODERS.get(ggml_type.name)
    if decode is None:
        known = ", ".join(_DECODERS)
        raise WeightsError(f"tensor {name} has type {ggml_type.name}; implemented are {known}")
    return decode(data)


def _from_f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32, copy=False)


def _from_f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _from_bf16(data: Bytes) -> Floats:
    # bfloat16 is the upper half of a float32.
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _from_q8_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 2 + BLOCK_WEIGHTS)
    return (_half(blocks, 0) * blocks[:, 2:].view(np.int8)).ravel()


def _from_q4_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 2 + BLOCK_WEIGHTS // 2)
    weights = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return (_half(blocks, 0) * weights).ravel()


def _from_q4_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 4 + BLOCK_WEIGHTS // 2)
    return (_half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)).ravel()


def _from_q5_0(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 6 + BLOCK_WEIGHTS // 2)
    weights = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (_half(blocks, 0) * (weights.astype(np.int8) - np.int8(16))).ravel()


def _from_q5_1(data: Bytes) -> Floats:
    blocks = data.reshape(-1, 8 + BLOCK_WEIGHTS // 2)
    weights = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return (_half(blocks, 0) * weights + _half(blocks, 2)).ravel()


def _half(blocks: Bytes, offset: int) -> Floats:
    """The 16-bit float at `offset` of every block, [num_blocks, 1]."""
    column = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return column.view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[num_blocks, 16] bytes to [num_blocks, 32] values below 16."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[num_blocks, 4] bytes, one bit a weight, to [num_blocks, 32] values of 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _from_f32,
    "F16": _from_f16,
    "BF16": _from_bf16,
    "Q8_0": _from_q8_0,
    "Q4_0": _from_q4_0,
    "Q4_1": _from_q4_1,
    "Q5_0": _from_q5_0,
    "Q5_1": _from_q5_1,
    "Q4_K": from_q4_k,
    "Q5_K": from_q5_k,
    "Q6_K": from_q6_k,
}
