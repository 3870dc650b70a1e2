"""Rows or columns of a GGUF tensor, dequantized alone.

Owns which blocks of the file a part lies in. Knows no names and no files: it takes a tensor's bytes
and gives numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagewire.gguf import GgmlType
from worker_svc.weights.dequantize import Bytes, Floats, dequantize
from worker_svc.weights.slots import TensorPart


def dequantize_part(
    data: Bytes, shape: tuple[int, ...], ggml_type: GgmlType, name: str, part: TensorPart
) -> Floats:
    """The weights of `part`, in its shape.

    Args:
        data: Bytes of the whole tensor, mapped: only the blocks that hold the part are read.
        shape: Of the whole tensor, [rows] or [rows, columns].
        ggml_type: Its format.
        name: Its name, for errors.
        part: What is wanted.
    """
    num_rows, num_columns = shape if len(shape) == 2 else (shape[0], 1)
    size, num_bytes = ggml_type.block_weights, ggml_type.block_bytes
    if num_columns % size:  # blocks lie across rows
        whole = dequantize(data, ggml_type, name).reshape(shape)
        return np.take(whole, range(part.start, part.start + part.size), axis=part.dim)
    blocks = data.reshape(num_rows, num_columns // size, num_bytes)
    end = part.start + part.size
    if part.dim == 0:
        return _numbers(blocks[part.start : end], ggml_type, name).reshape(part.size, *shape[1:])
    first, last = part.start // size, -(-end // size)
    columns = _numbers(blocks[:, first:last], ggml_type, name).reshape(num_rows, -1)
    return columns[:, part.start - first * size : end - first * size]


def cut_blocks(
    data: Bytes, shape: tuple[int, ...], ggml_type: GgmlType, part: TensorPart | None
) -> npt.NDArray[np.uint8] | None:
    """The blocks of a matrix, or of a part of it: [rows, blocks of a row, bytes of a block].

    None: the tensor is no matrix, or the part's columns cut through blocks.
    """
    size = ggml_type.block_weights
    if len(shape) != 2 or shape[1] % size:
        return None
    blocks = data.reshape(shape[0], shape[1] // size, ggml_type.block_bytes)
    if part is None:
        return blocks
    if part.dim == 0:
        return blocks[part.start : part.start + part.size]
    if part.start % size or part.size % size:
        return None
    first = part.start // size
    return blocks[:, first : first + part.size // size]


def _numbers(blocks: npt.NDArray[np.uint8], ggml_type: GgmlType, name: str) -> Floats:
    return dequantize(np.ascontiguousarray(blocks).reshape(-1), ggml_type, name)
