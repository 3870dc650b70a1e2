"""Packed weights and the matrix product with them, each behind the same two methods.

Owns the layouts of ATen's operators and the choice of activations in float32 for all of them: with
bfloat16 their scales are rounded (relative error 2e-3 for 4e-7), and the 8-bit one reads past its
weights. Every product of a row is the same whatever rows are beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from worker_svc.quantization.forms import (
    GROUP_SIZE,
    Int4Groups,
    Int8Groups,
    Int8Rows,
    QuantizedForm,
)

_ROWS_PER_TILE = 16
_ROWS_PACKED_AT_ONCE = 1024
"""A multiple of the operator's blocks of rows; packing goes through int32, eight times as large."""


class PackedInt4(nn.Module):
    """`_weight_int4pack_mm_for_cpu`, with float32 scales."""

    def __init__(self, form: Int4Groups) -> None:
        super().__init__()
        self.num_rows = form.codes.shape[0]
        padding = (0, 0, 0, -self.num_rows % _ROWS_PER_TILE)
        chunks = torch.split(functional.pad(form.codes, padding), _ROWS_PACKED_AT_ONCE)
        packed = [
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(chunk.to(torch.int32), 1)
            for chunk in chunks
        ]
        # The operator's weight is (code - 8) * scale + zero.
        zeros = form.offsets + 8 * form.scales
        scales_and_zeros = torch.stack((form.scales, zeros), dim=-1)
        scales_and_zeros = functional.pad(scales_and_zeros, (0, 0, *padding))
        self.weight = _parameter(torch.cat(packed))
        # [num_groups, num_rows, 2]
        self.scales_and_zeros = _parameter(scales_and_zeros.transpose(0, 1).contiguous())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, num_rows], both float32
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            inputs, self.weight, GROUP_SIZE, self.scales_and_zeros
        )
        return product[:, : self.num_rows]


class PackedInt8Rows(nn.Module):
    """`_weight_int8pack_mm`: codes as they are, a scale a row."""

    def __init__(self, form: Int8Rows) -> None:
        super().__init__()
        self.num_rows = form.codes.shape[0]
        self.weight = _parameter(form.codes)
        self.scales = _parameter(form.scales)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, num_rows], both float32
        product: torch.Tensor = torch.ops.aten._weight_int8pack_mm(inputs, self.weight, self.scales)
        return product


class PackedInt8Groups(nn.Module):
    """Codes with a scale a group, for which ATen has no operator: dequantized at each use."""

    def __init__(self, form: Int8Groups) -> None:
        super().__init__()
        self.num_rows = form.codes.shape[0]
        self.weight = _parameter(form.codes)
        self.scales = _parameter(form.scales)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # [num_tokens, input_size] -> [num_tokens, num_rows], both float32
        groups = self.weight.view(*self.scales.shape, GROUP_SIZE) * self.scales.unsqueeze(-1)
        return functional.linear(inputs, groups.flatten(1))


PackedWeight = PackedInt4 | PackedInt8Rows | PackedInt8Groups


def pack(forms: Sequence[QuantizedForm]) -> list[PackedWeight]:
    """Pack rows that follow each other; neighbours of one form go together, into one product."""
    packed: list[PackedWeight] = []
    start = 0
    for end in range(1, len(forms) + 1):
        if end == len(forms) or type(forms[end]) is not type(forms[start]):
            packed.append(_pack_alike(forms[start:end]))
            start = end
    return packed


def _pack_alike(forms: Sequence[QuantizedForm]) -> PackedWeight:
    codes, scales = torch.cat([f.codes for f in forms]), torch.cat([f.scales for f in forms])
    if isinstance(forms[0], Int4Groups):
        offsets = torch.cat([form.offsets for form in forms if isinstance(form, Int4Groups)])
        return PackedInt4(Int4Groups(codes, scales, offsets))
    if isinstance(forms[0], Int8Rows):
        return PackedInt8Rows(Int8Rows(codes, scales))
    return PackedInt8Groups(Int8Groups(codes, scales))


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
