"""Which blocks of a checkpoint the kernels have a form for, and what is packed of them.

Owns the kinds of packed matrices, as native/kernels.h has them. Weights keep the numbers that the
file has: blocks of a type without a form of its own become those of one that holds the same.
"""

from __future__ import annotations

import numpy as np

from pagewire.gguf import GgmlType
from worker_svc.quantization.forms import GgmlBlocks

_Q4, _Q8, _Q4_K, _Q5_K, _Q6_K, _F16, _BF16 = range(7)
KINDS = {
    GgmlType.Q4_0: _Q4,
    GgmlType.Q4_1: _Q4,
    GgmlType.Q5_0: _Q8,
    GgmlType.Q8_0: _Q8,
    GgmlType.Q4_K: _Q4_K,
    GgmlType.Q5_K: _Q5_K,
    GgmlType.Q6_K: _Q6_K,
    GgmlType.F16: _F16,
    GgmlType.BF16: _BF16,
}
"""Kind of packed matrix, by the type of its blocks."""


FLOATS = (GgmlType.F16, GgmlType.BF16)
"""Types whose numbers are packed as they are."""


def packable(packed: GgmlBlocks) -> GgmlBlocks:
    """Blocks as the kernels take them, contiguous: Q5_0 becomes Q8_0, others stay what they are."""
    if packed.ggml_type is not GgmlType.Q5_0:
        return GgmlBlocks(packed.ggml_type, np.ascontiguousarray(packed.blocks))
    blocks = packed.blocks
    nibbles = np.concatenate((blocks[:, :, 6:] & 0x0F, blocks[:, :, 6:] >> 4), axis=2)
    fifth = np.unpackbits(blocks[:, :, 2:6], axis=2, bitorder="little")
    made = np.empty((*blocks.shape[:2], GgmlType.Q8_0.block_bytes), dtype=np.uint8)
    made[:, :, :2] = blocks[:, :, :2]
    # Less 16, as whole numbers of 8 bits with a sign.
    made[:, :, 2:] = (nibbles | fifth << np.uint8(4)) - np.uint8(16)
    return GgmlBlocks(GgmlType.Q8_0, made)
