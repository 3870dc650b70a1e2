"""Writes small GGUF files, honest or hostile, for tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<?",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def number(item_type: int, value: float) -> bytes:
    return struct.pack(_FORMATS[item_type], value)


def array(item_type: int, items: list[bytes], count: int | None = None) -> bytes:
    """An array's value; `count` may lie."""
    header = struct.pack("<IQ", item_type, len(items) if count is None else count)
    return header + b"".join(items)


def strings(texts: list[str]) -> bytes:
    return array(STRING, [string(text) for text in texts])


def numbers(item_type: int, values: list[float] | list[int]) -> bytes:
    return array(item_type, [number(item_type, value) for value in values])


@dataclass
class GgufBuilder:
    """Collects keys and tensors; every count can be made to lie."""

    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    num_tensors: int | None = None
    num_keys: int | None = None
    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""

    def key(self, name: str | bytes, value_type: int, value: bytes) -> GgufBuilder:
        self.keys.append(string(name) + struct.pack("<I", value_type) + value)
        return self

    def text(self, name: str, value: str) -> GgufBuilder:
        return self.key(name, STRING, string(value))

    def tensor(
        self, name: str, innermost_first: tuple[int, ...], ggml_type: int, offset: int
    ) -> GgufBuilder:
        dims = b"".join(struct.pack("<Q", size) for size in innermost_first)
        head = string(name) + struct.pack("<I", len(innermost_first)) + dims
        self.tensors.append(head + struct.pack("<IQ", ggml_type, offset))
        return self

    def bytes(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        padding = b"\0" * (-len(head) % self.alignment)
        return head + padding + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path
