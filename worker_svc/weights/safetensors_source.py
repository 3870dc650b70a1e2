"""A Hugging Face directory: config.json, and safetensors files found by name or by their index.

Reads the format itself (a length, a JSON header, raw bytes), memory-mapped, with every offset
checked against the file's length. Which files there are is `safetensors_index`'s. Called through
`open_weights`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagewire.gguf import GgmlType
from worker_svc.models.hf_files import read_generation_config, read_model_config
from worker_svc.quantization.forms import GgmlBlocks
from worker_svc.weights.gguf_parts import cut_blocks
from worker_svc.weights.mapped_file import MappedFile
from worker_svc.weights.safetensors_index import check_index, read_index, weight_files
from worker_svc.weights.slots import TensorPart
from worker_svc.weights.source import WeightsError

MAX_HEADER_BYTES = 100 * 2**20
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    # No weights: old checkpoints store their causal masks.
    "BOOL": torch.bool,
    "U8": torch.uint8,
}
_GGML_TYPES = {
    torch.float32: GgmlType.F32,
    torch.float16: GgmlType.F16,
    torch.bfloat16: GgmlType.BF16,
}
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    file: MappedFile
    start: int
    """Offset in the file."""
    n_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self.file.data[self.start : self.start + self.n_bytes]


class SafetensorsSource:
    """The tensors of all shards; mapped, so nothing is read until it is copied."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = read_model_config(directory)
        index = read_index(directory)
        self._tensors: dict[str, _StoredTensor] = {}
        for path in weight_files(directory, index):
            for name, stored in _read_file(path).items():
                if name in self._tensors:
                    other = self._tensors[name].file.path.name
                    raise WeightsError(f"tensor {name} is in {other} and in {path.name}")
                self._tensors[name] = stored
        check_index(index, {name: t.file.path.name for name, t in self._tensors.items()})

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def default_sampling(self) -> Mapping[str, float | int]:
        fields = read_generation_config(self._directory)
        if not fields.get("do_sample", False):
            return {}
        return {name: fields[name] for name in _SAMPLING_FIELDS if fields.get(name) is not None}

    def names(self) -> frozenset[str]:
        # Old checkpoints store the rotary frequencies, which follow from the config.
        return frozenset(n for n in self._tensors if not n.endswith("rotary_emb.inv_freq"))

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        return torch.from_numpy(stored.data).view(stored.dtype).view(stored.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        # A view of mapped memory: only pages that are copied from are read.
        return self.tensor(name).narrow(part.dim, part.start, part.size)

    def ggml_type(self, name: str) -> GgmlType | None:
        return _GGML_TYPES.get(self._tensors[name].dtype)

    def blocks(self, name: str, part: TensorPart | None = None) -> GgmlBlocks | None:
        ggml_type = self.ggml_type(name)
        if ggml_type is None:
            return None
        # Single numbers are blocks of one.
        blocks = cut_blocks(self._tensors[name].data, self.shape(name), ggml_type, part)
        return None if blocks is None else GgmlBlocks(ggml_type, blocks)

    def stored_bytes(self, name: str) -> memoryview:
        return self._tensors[name].data.data

    def location(self, name: str | None = None) -> str:
        return self._directory.name if name is None else self._tensors[name].file.path.name

    def release(self, name: str) -> None:
        stored = self._tensors[name]
        stored.file.release(stored.start, stored.n_bytes)


def _read_file(path: Path) -> dict[str, _StoredTensor]:
    header, start = _read_header(path)
    file = MappedFile.open(path)
    header.pop("__metadata__", None)
    tensors = {name: _stored_tensor(file, name, entry, start) for name, entry in header.items()}
    _check_no_overlap(path, tensors)
    return tensors


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The JSON header, and the offset at which tensor data starts."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(MAX_HEADER_BYTES, size - 8):
            raise WeightsError(
                f"{path.name} is damaged: a header of {header_bytes} bytes in a file of {size}"
            )
        try:
            header = json.loads(file.read(header_bytes))
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{path.name} is damaged: its header is not JSON") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path.name} is damaged: its header is not a JSON object")
    return header, 8 + header_bytes


def _stored_tensor(
    file: MappedFile, name: str, entry: Mapping[str, Any], data_start: int
) -> _StoredTensor:
    file_name, data_bytes = file.path.name, len(file.data) - data_start
    try:
        dtype_name = str(entry["dtype"])
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WeightsError(f"{file_name} is damaged: the entry of tensor {name}") from error
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        known = ", ".join(_DTYPES)
        raise WeightsError(
            f"{file_name}: tensor {name} has unsupported type {dtype_name}; supported are {known}"
        )
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= data_bytes or end - begin != expected:
        raise WeightsError(
            f"{file_name}: tensor {name} of shape {shape} needs {expected} bytes, "
            f"has offsets {begin} to {end} in {data_bytes} bytes"
        )
    return _StoredTensor(file, data_start + begin, end - begin, dtype, shape)


def _check_no_overlap(path: Path, tensors: Mapping[str, _StoredTensor]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].n_bytes))
    for (name, tensor), (next_name, next_tensor) in pairwise(ordered):
        if tensor.start + tensor.n_bytes > next_tensor.start:
            raise WeightsError(f"{path.name} is damaged: tensors {name} and {next_name} overlap")
