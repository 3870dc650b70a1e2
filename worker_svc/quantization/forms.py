"""Quantized weights as plain numbers, from floats or from GGML's blocks, before they are packed.

Owns how a weight becomes a code. Knows no kernels and no layers. A group is `GROUP_SIZE` weights of
a row side by side, GGML's block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pagewire.gguf import GgmlType

GROUP_SIZE = 32
_INT4_LEVELS = 15
_INT8_LIMIT = 127


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """4-bit codes with a scale and an offset a group: weight = code * scale + offset."""

    codes: torch.Tensor
    """[num_rows, input_size] uint8, below 16."""
    scales: torch.Tensor
    """[num_rows, num_groups] float32."""
    offsets: torch.Tensor
    """[num_rows, num_groups] float32."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """8-bit codes with a scale a row: weight = code * scale."""

    codes: torch.Tensor
    """[num_rows, input_size] int8."""
    scales: torch.Tensor
    """[num_rows] float32."""


@dataclass(frozen=True, slots=True)
class Int8Groups:
    """8-bit codes with a scale a group, as Q8_0 has them: weight = code * scale."""

    codes: torch.Tensor
    """[num_rows, input_size] int8."""
    scales: torch.Tensor
    """[num_rows, num_groups] float32."""


QuantizedForm: TypeAlias = Int4Groups | Int8Rows | Int8Groups


@dataclass(frozen=True, slots=True)
class GgmlBlocks:
    """Rows of a GGUF tensor as they lie in the file."""

    ggml_type: GgmlType
    blocks: npt.NDArray[np.uint8]
    """[num_rows, num_groups, bytes of a block]."""


def int4_from_floats(weights: torch.Tensor) -> Int4Groups:
    """Quantize [num_rows, input_size]: a group's codes go evenly from its least to its largest."""
    groups = weights.float().reshape(len(weights), -1, GROUP_SIZE)
    least, largest = groups.aminmax(dim=-1, keepdim=True)
    scales = (largest - least) / _INT4_LEVELS
    # A group of equal weights has scale 0, and its offset says it all.
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    codes = ((groups - least) / steps).round_().to(torch.uint8)
    return Int4Groups(codes.flatten(1), scales.squeeze(-1), least.squeeze(-1))


def int8_from_floats(weights: torch.Tensor) -> Int8Rows:
    """Quantize [num_rows, input_size]: the largest magnitude of a row becomes 127."""
    rows = weights.float()
    scales = rows.abs().amax(dim=1) / _INT8_LIMIT
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    return Int8Rows((rows / steps[:, None]).round_().to(torch.int8), scales)


def int4_from_blocks(packed: GgmlBlocks) -> Int4Groups | None:
    """Q4_0 and Q4_1 in our form, each weight what it was; None: another type."""
    blocks = packed.blocks
    if packed.ggml_type is GgmlType.Q4_0:
        scales = _half(blocks, 0)
        return Int4Groups(_nibbles(blocks[:, :, 2:]), scales, -8 * scales)
    if packed.ggml_type is GgmlType.Q4_1:
        return Int4Groups(_nibbles(blocks[:, :, 4:]), _half(blocks, 0), _half(blocks, 2))
    return None


def int8_from_blocks(packed: GgmlBlocks) -> Int8Groups | None:
    """Q8_0 in our form, each weight what it was; None: another type."""
    if packed.ggml_type is not GgmlType.Q8_0:
        return None
    codes = np.ascontiguousarray(packed.blocks[:, :, 2:]).view(np.int8)
    return Int8Groups(torch.from_numpy(codes).flatten(1), _half(packed.blocks, 0))


def _half(blocks: npt.NDArray[np.uint8], offset: int) -> torch.Tensor:
    """The 16-bit float at `offset` of every block, [num_rows, num_groups] float32."""
    column = np.ascontiguousarray(blocks[:, :, offset : offset + 2])
    return torch.from_numpy(column.view("<f2").astype(np.float32)).squeeze(-1)


def _nibbles(packed: npt.NDArray[np.uint8]) -> torch.Tensor:
    """[num_rows, num_groups, 16] bytes to [num_rows, input_size] codes."""
    codes = np.concatenate((packed & 0x0F, packed >> 4), axis=2)
    return torch.from_numpy(codes).flatten(1)
