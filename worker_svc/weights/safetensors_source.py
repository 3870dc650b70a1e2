"""A Hugging Face directory: config.json, and safetensors files found by name or by their index.

Reads the format itself (a length, a JSON header, raw bytes), memory-mapped, with every offset
checked against the file's length. Called through `open_weights`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.models.hf_files import (
    read_generation_config,
    read_json_object,
    read_model_config,
)
from worker_svc.weights.source import WeightsError

MAX_HEADER_BYTES = 100 * 2**20
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    data: npt.NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]


class SafetensorsSource:
    """The tensors of all shards; mapped copy-on-write, so nothing is read until it is copied."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._config = read_model_config(directory)
        self._tensors: dict[str, _StoredTensor] = {}
        for file in _weight_files(directory):
            self._tensors.update(_read_file(file))

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

    def stored_bytes(self, name: str) -> memoryview:
        return self._tensors[name].data.data


def _weight_files(directory: Path) -> list[Path]:
    if (directory / INDEX_FILE).is_file():
        shards = set(read_json_object(directory / INDEX_FILE).get("weight_map", {}).values())
        files = [directory / str(shard) for shard in sorted(shards)]
    elif (directory / SINGLE_FILE).is_file():
        files = [directory / SINGLE_FILE]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory} has no safetensors files")
    for file in files:
        # An index must not lead out of its directory.
        if file.parent != directory or not file.is_file():
            raise WeightsError(f"{INDEX_FILE} names {file.name}, which is not in {directory}")
    return files


def _read_file(path: Path) -> dict[str, _StoredTensor]:
    header, start = _read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="c")[start:]
    header.pop("__metadata__", None)
    return {name: _stored_tensor(path, name, entry, data) for name, entry in header.items()}


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
        except ValueError as error:
            raise WeightsError(f"{path.name} is damaged: its header is not JSON") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path.name} is damaged: its header is not a JSON object")
    return header, 8 + header_bytes


def _stored_tensor(
    path: Path, name: str, entry: Mapping[str, Any], data: npt.NDArray[np.uint8]
) -> _StoredTensor:
    try:
        dtype_name = str(entry["dtype"])
        shape = tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path.name} is damaged: the entry of tensor {name}") from error
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise WeightsError(f"{path.name}: tensor {name} has unsupported type {dtype_name}")
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(data) or end - begin != expected:
        raise WeightsError(
            f"{path.name}: tensor {name} of shape {shape} needs {expected} bytes, "
            f"has offsets {begin} to {end} in {len(data)} bytes"
        )
    return _StoredTensor(data[begin:end], dtype, shape)
