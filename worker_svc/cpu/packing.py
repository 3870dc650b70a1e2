"""Weights of a checkpoint in the layout of the kernels, and single kernels over numpy arrays.

A matrix keeps the numbers of its file: blocks are only put in another order. Knows no models.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pagewire.gguf import GgmlType
from worker_svc.cpu.block_forms import KINDS, packable
from worker_svc.cpu.kernels import Kernels
from worker_svc.cpu.structs import Matrix
from worker_svc.quantization.forms import GROUP_SIZE, GgmlBlocks

Floats = npt.NDArray[np.float32]

MAX_TOKENS = 128
"""Of one product."""


class PackedMatrix(nn.Module):
    """[rows, columns] weights, with the scales of their blocks; empty until blocks come."""

    def __init__(self, kernels: Kernels, ggml_type: GgmlType, rows: int, columns: int) -> None:
        """Takes memory, which is not touched before blocks come.

        Args:
            kernels: The variant that reads it.
            ggml_type: One of `KINDS`.
            rows: Any number.
            columns: A multiple of the weights of a block, and of `GROUP_SIZE`.
        """
        super().__init__()
        size = max(ggml_type.block_weights, GROUP_SIZE)
        if columns % size:
            raise ValueError(f"{columns} columns are no whole number of blocks of {size}")
        self.kernels = kernels
        self.ggml_type = ggml_type
        self.rows, self.columns = rows, columns
        kind = KINDS[ggml_type]
        num_bytes = kernels.native.pw_packed_bytes(kernels.handle, kind, rows, columns)
        self.data = nn.Parameter(torch.empty(num_bytes, dtype=torch.uint8), requires_grad=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def struct(self) -> Matrix:
        """For the library; good while the matrix lives."""
        return Matrix(self.data.data_ptr(), KINDS[self.ggml_type], self.rows, self.columns)

    def take(self, packed: GgmlBlocks) -> bool:
        """Pack blocks of its type; says whether they are."""
        if packed.ggml_type is not self.ggml_type:
            return False
        ggml_type = self.ggml_type
        expected = (self.rows, self.columns // ggml_type.block_weights, ggml_type.block_bytes)
        if packed.blocks.shape != expected:
            raise ValueError(f"blocks of shape {packed.blocks.shape} where {expected} are wanted")
        ready = packable(packed)
        self.kernels.native.pw_pack(
            self.kernels.handle,
            int(ready.ggml_type),
            ready.blocks.ctypes.data,
            self.struct,
            self.data.data_ptr(),
        )
        return True

    def copy_(self, tensor: torch.Tensor, /) -> None:
        raise TypeError("packed weights are made of blocks alone")

    def row(self, index: int) -> Floats:
        """One row as it is read."""
        out = np.empty(self.columns, dtype=np.float32)
        self.kernels.native.pw_unpack_row(self.kernels.handle, self.struct, index, out.ctypes.data)
        return out

    def multiply(self, inputs: Floats, bias: Floats | None = None) -> Floats:
        """[num_tokens, rows] of [num_tokens, columns], quantized first where weights are codes.

        Raises:
            ValueError: The inputs have another shape, or there are more than `MAX_TOKENS`.
        """
        if inputs.ndim != 2 or inputs.shape[1] != self.columns or len(inputs) > MAX_TOKENS:
            raise ValueError(f"inputs of shape {inputs.shape} for a matrix of {self.shape}")
        inputs = np.ascontiguousarray(inputs, dtype=np.float32)
        out = np.empty((len(inputs), self.rows), dtype=np.float32)
        self.kernels.native.pw_linear(
            self.kernels.handle,
            self.struct,
            inputs.ctypes.data,
            len(inputs),
            None if bias is None else bias.ctypes.data,
            False,
            out.ctypes.data,
        )
        return out
