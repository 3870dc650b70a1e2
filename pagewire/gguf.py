"""The header of a GGUF file: metadata, tensor table, and memory-mapped views of tensor bytes.

Owns the file format (versions 2 and 3, little endian) and every check that a hostile file needs:
counts, lengths, offsets and sizes are compared with the file's length before anything of that size
is read. Arrays are skipped unless a caller asks for them by key, so a vocabulary costs nothing to
those who don't need it. Knows nothing of what keys, tokens or weights mean. Used by the tokenizer
service and the worker.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT_BYTES = 32
MAX_ALIGNMENT_BYTES = 1 << 20
MAX_KEY_BYTES = 65_535
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

Scalar: TypeAlias = bool | int | float | str
# Strings come as a list, numbers as a numpy array, nested arrays as a list of those.
Array: TypeAlias = "list[str] | npt.NDArray[np.generic] | list[Array]"
Value: TypeAlias = "Scalar | Array"


class GgufError(ValueError):
    """The file is not a GGUF file that we can trust; the message names the file and the place."""


class GgmlType(IntEnum):
    """Storage formats of tensors, with ggml's numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39

    @property
    def block_weights(self) -> int:
        """Number of weights in one block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Size of one block."""
        return _BLOCKS[self][1]


# (weights, bytes) of one block.
_BLOCKS: Mapping[GgmlType, tuple[int, int]] = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q8_1: (32, 40),
    GgmlType.Q2_K: (256, 84),
    GgmlType.Q3_K: (256, 110),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.Q8_K: (256, 292),
    GgmlType.IQ2_XXS: (256, 66),
    GgmlType.IQ2_XS: (256, 74),
    GgmlType.IQ3_XXS: (256, 98),
    GgmlType.IQ1_S: (256, 50),
    GgmlType.IQ4_NL: (32, 18),
    GgmlType.IQ3_S: (256, 110),
    GgmlType.IQ2_S: (256, 82),
    GgmlType.IQ4_XS: (256, 136),
    GgmlType.I8: (1, 1),
    GgmlType.I16: (1, 2),
    GgmlType.I32: (1, 4),
    GgmlType.I64: (1, 8),
    GgmlType.F64: (1, 8),
    GgmlType.IQ1_M: (256, 56),
    GgmlType.BF16: (1, 2),
    GgmlType.TQ1_0: (256, 54),
    GgmlType.TQ2_0: (256, 66),
    GgmlType.MXFP4: (32, 17),
}

# Numbers of the value types in metadata.
_STRING, _ARRAY = 8, 9
_NUMBERS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    `shape` is in numpy's order, outermost dimension first; `offset` counts from the start of the
    file; `n_bytes` is the size in the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A header that passed every check, over a read-only map of its file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    data: npt.NDArray[np.uint8]
    """The whole file, memory-mapped."""
    _map: mmap.mmap

    def tensor_bytes(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as a read-only view into the map: [n_bytes] uint8, nothing is read."""
        return self.data[info.offset : info.offset + info.n_bytes]

    def release(self, info: TensorInfo) -> None:
        """Give the tensor's pages back to the kernel; reading it again reads the file again."""
        first = info.offset - info.offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, info.offset + info.n_bytes - first)


def read_gguf(path: Path | str, *, keys: Collection[str] | None = None) -> GgufFile:
    """Read and check the header of a GGUF file.

    Args:
        path: The file.
        keys: Metadata keys whose arrays are wanted; other arrays are skipped. Scalars and strings
            are always there.

    Raises:
        GgufError: The file is truncated, contradicts itself, or is of a kind not supported.
        OSError: The file cannot be opened.
    """
    path = Path(path)
    if path.stat().st_size < 24:
        raise GgufError(f"{path}: too short for a GGUF file")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, dtype=np.uint8)
    reader = _Reader(path, data)
    num_tensors, num_keys = reader.preamble()
    metadata = _read_metadata(reader, num_keys, frozenset(keys or ()))
    tensors = _read_tensors(reader, num_tensors, _alignment(reader, metadata))
    return GgufFile(path=path, metadata=metadata, tensors=tensors, data=data, _map=mapped)


def _read_metadata(reader: _Reader, num_keys: int, wanted: frozenset[str]) -> dict[str, Value]:
    # A key takes at least its length, one byte, its type and one byte of value.
    reader.check_count(num_keys, 14, "metadata keys")
    metadata: dict[str, Value] = {}
    seen: set[str] = set()
    for _ in range(num_keys):
        key = reader.string(max_bytes=MAX_KEY_BYTES)
        if key in seen:
            raise reader.error(f"metadata key {key!r} is there twice")
        seen.add(key)
        value_type = reader.u32()
        if value_type == _ARRAY and key not in wanted:
            reader.skip_array()
        else:
            metadata[key] = reader.value(value_type)
    return metadata


def _alignment(reader: _Reader, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    usable = isinstance(alignment, int) and 0 < alignment <= MAX_ALIGNMENT_BYTES
    if not isinstance(alignment, int) or not usable or alignment & (alignment - 1):
        raise reader.error(f"general.alignment is {alignment!r}, not a power of two")
    return alignment


def _read_tensors(reader: _Reader, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    # An entry takes at least name length, number of dimensions, type and offset.
    reader.check_count(num_tensors, 24, "tensors")
    entries = [_read_tensor_entry(reader) for _ in range(num_tensors)]
    start = -(-reader.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, ggml_type, relative in entries:
        if name in tensors:
            raise reader.error(f"tensor {name!r} is there twice")
        if relative % alignment:
            raise reader.error(f"tensor {name!r}: offset {relative} is not aligned to {alignment}")
        info = TensorInfo(name, shape, ggml_type, start + relative, _n_bytes(shape, ggml_type))
        if info.offset + info.n_bytes > len(reader.data):
            raise reader.error(f"tensor {name!r} ends behind the end of the file")
        tensors[name] = info
    _check_no_overlap(reader, tensors)
    return tensors


def _read_tensor_entry(reader: _Reader) -> tuple[str, tuple[int, ...], GgmlType, int]:
    name = reader.string(max_bytes=MAX_KEY_BYTES)
    num_dimensions = reader.u32()
    if num_dimensions > MAX_DIMENSIONS:
        raise reader.error(f"tensor {name!r} has {num_dimensions} dimensions")
    # The file has the innermost dimension first.
    shape = tuple(reader.u64() for _ in range(num_dimensions))[::-1]
    if 0 in shape:
        raise reader.error(f"tensor {name!r} has an empty dimension: {shape}")
    number = reader.u32()
    try:
        ggml_type = GgmlType(number)
    except ValueError:
        raise reader.error(f"tensor {name!r} has the unknown type {number}") from None
    if (shape[-1] if shape else 1) % ggml_type.block_weights:
        raise reader.error(
            f"tensor {name!r}: rows of {shape[-1] if shape else 1} weights are no whole number of "
            f"{ggml_type.name} blocks"
        )
    return name, shape, ggml_type, reader.u64()


def _n_bytes(shape: tuple[int, ...], ggml_type: GgmlType) -> int:
    return prod(shape) // ggml_type.block_weights * ggml_type.block_bytes


def _check_no_overlap(reader: _Reader, tensors: Mapping[str, TensorInfo]) -> None:
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.n_bytes > after.offset:
            raise reader.error(f"tensors {before.name!r} and {after.name!r} overlap")


class _Reader:
    """A cursor over the map; every read checks the file's length first."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.data = data
        self.position = 0
        self._path = path
        self._view = data.data

    def error(self, message: str) -> GgufError:
        return GgufError(f"{self._path}: {message} (at byte {self.position})")

    def preamble(self) -> tuple[int, int]:
        """Magic and version; then the numbers of tensors and metadata keys."""
        if bytes(self._view[:4]) != MAGIC:
            raise self.error("not a GGUF file (wrong magic)")
        self.position = 4
        version = self.u32()
        if version not in SUPPORTED_VERSIONS:
            kind = "a big-endian GGUF file" if version & 0xFFFF == 0 else f"GGUF version {version}"
            raise self.error(f"{kind} is not supported; convert it to version 3, little endian")
        return self.u64(), self.u64()

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        if count * least_bytes > len(self.data) - self.position:
            raise self.error(f"the file is too short for {count} {what}")

    def u32(self) -> int:
        return int(_U32.unpack_from(self._view, self._take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._view, self._take(8))[0])

    def string(self, max_bytes: int | None = None) -> str:
        length = self.u64()
        if max_bytes is not None and length > max_bytes:
            raise self.error(f"a name of {length} bytes")
        start = self._take(length)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise self.error("a string that is not UTF-8") from None

    def value(self, value_type: int, depth: int = 0) -> Value:
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            return self._array(depth + 1)
        scalar: Scalar = self._numbers(value_type, 1)[0].item()
        return scalar

    def skip_array(self, depth: int = 1) -> None:
        item_type, count = self._array_header(depth)
        if item_type == _STRING:
            self._skip_strings(count)
        elif item_type == _ARRAY:
            for _ in range(count):
                self.skip_array(depth + 1)
        else:
            self._take(count * self._dtype(item_type).itemsize)

    def _array(self, depth: int) -> Array:
        item_type, count = self._array_header(depth)
        if item_type == _STRING:
            return self._strings(count)
        if item_type == _ARRAY:
            return [self._array(depth + 1) for _ in range(count)]
        return self._numbers(item_type, count)

    def _array_header(self, depth: int) -> tuple[int, int]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.error(f"arrays nested more than {MAX_ARRAY_DEPTH} deep")
        item_type, count = self.u32(), self.u64()
        least_bytes = {_STRING: 8, _ARRAY: 12}.get(item_type, 1)
        self.check_count(count, least_bytes, "array items")
        return item_type, count

    def _strings(self, count: int) -> list[str]:
        # Hot, as the next one: a vocabulary and its merges are 100,000 strings and more.
        view, position, end = self._view, self.position, len(self.data)
        unpack, texts = _U64.unpack_from, list[str]()
        try:
            for _ in range(count):
                start = position + 8
                if start > end:
                    raise self.error("truncated inside an array of strings")
                position = start + unpack(view, start - 8)[0]
                if position > end:
                    raise self.error("truncated inside an array of strings")
                texts.append(str(view[start:position], "utf-8"))
        except UnicodeDecodeError:
            raise self.error("a string that is not UTF-8") from None
        self.position = position
        return texts

    def _skip_strings(self, count: int) -> None:
        view, position, end = self._view, self.position, len(self.data)
        unpack = _U64.unpack_from
        for _ in range(count):
            if position > end - 8:
                raise self.error("truncated inside an array of strings")
            position += 8 + unpack(view, position)[0]
        self.position = position
        self._take(0)

    def _numbers(self, item_type: int, count: int) -> npt.NDArray[np.generic]:
        dtype = self._dtype(item_type)
        start = self._take(count * dtype.itemsize)
        # A copy: callers keep it longer than the map, and its place in the file is unaligned.
        raw = self.data[start : self.position]
        if dtype.kind == "b":
            return np.not_equal(raw, 0)
        return raw.copy().view(dtype)

    def _dtype(self, item_type: int) -> np.dtype[np.generic]:
        dtype = _NUMBERS.get(item_type)
        if dtype is None:
            raise self.error(f"unknown metadata type {item_type}")
        return dtype

    def _take(self, n_bytes: int) -> int:
        """Move over `n_bytes` that are in the file; returns where they start."""
        start = self.position
        if n_bytes > len(self.data) - start:
            raise self.error(f"truncated: {n_bytes} more bytes wanted")
        self.position = start + n_bytes
        return start
