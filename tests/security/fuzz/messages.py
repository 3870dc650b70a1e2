"""Random bytes for methods of gRPC: valid messages, damaged ones, and plain hostile ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_MAX_DEPTH = 4
_TEXTS = (
    "", "a", "smollm2", "debug", "\x00", "\ud7ff", "é" * 50, "{", "[[[[", '{"type":"object"}',
    "%s%n", "../../etc/passwd", "unix:/x", "(a*)*b", "x" * 5000,
)  # fmt: skip
_INTEGERS = (0, 1, 2, 3, 7, 16, 255, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1)
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e300, -1e-300, float("inf"), float("-inf"), float("nan"))
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def payloads(kind: type[Any], generator: random.Random, count: int) -> Iterator[bytes]:
    """Yield payloads for a method that takes messages of this type; the hostile ones first."""
    yield from hostile()
    for _ in range(count):
        valid = serialized(kind, generator)
        yield valid
        yield damaged(valid, generator)
        yield generator.randbytes(generator.choice((1, 2, 5, 20, 200)))


def hostile() -> Iterator[bytes]:
    """Yield what a parser of protobuf must stand."""
    yield b""
    yield b"\x0a\xff\xff\xff\xff\x0f"  # a field of 4 GiB
    yield b"\xff" * 20  # a varint without an end
    nested = b""
    for _ in range(2000):
        nested = b"\x0a" + _varint(len(nested)) + nested
    yield nested
    yield b"\x0b" * 5000  # groups in groups
    yield b"\x0a\x02\xff\xfe" * 100  # text that is no UTF-8


def serialized(kind: type[Any], generator: random.Random) -> bytes:
    """Return a message with random fields, as bytes."""
    message: Message = kind()
    _fill(message, generator, 0)
    return message.SerializeToString()


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Return the bytes with a few of them changed, lost, doubled or added."""
    result = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        place = generator.randint(0, len(result))
        choice = generator.randrange(4)
        if choice == 0 and place < len(result):
            result[place] = generator.randrange(256)
        elif choice == 1:
            del result[place : place + generator.randint(1, 8)]
        elif choice == 2:
            result[place:place] = result[place : place + generator.randint(1, 64)]
        else:
            result[place:place] = generator.randbytes(generator.randint(1, 8))
    return bytes(result)


def _fill(message: Message, generator: random.Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if generator.random() < 0.5:
            _set(message, field, generator, depth)


def _set(message: Any, field: FieldDescriptor, generator: random.Random, depth: int) -> None:
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if is_message and depth >= _MAX_DEPTH:
        return
    if is_message and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        for _ in range(generator.choice((0, 1, 2, 5))):
            if is_message:
                _fill(getattr(message, field.name).add(), generator, depth + 1)
            else:
                getattr(message, field.name).append(_scalar(field, generator))
    elif is_message:
        getattr(message, field.name).SetInParent()
        _fill(getattr(message, field.name), generator, depth + 1)
    else:
        setattr(message, field.name, _scalar(field, generator))


def _scalar(field: FieldDescriptor, generator: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = generator.choice(_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return generator.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return generator.choice(_NUMBERS)
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        (number,) = struct.unpack("f", struct.pack("I", generator.getrandbits(32)))
        return number
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return generator.choice([value.number for value in field.enum_type.values])
    low, high = _BOUNDS[kind]
    return min(max(generator.choice(_INTEGERS), low), high)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
