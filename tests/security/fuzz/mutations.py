"""Damage for files and documents: of bytes, of text, and of JSON values."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tests.security.fuzz.messages import damaged

DEEP = 100_000
_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**40, 0.5, -0.0, 1e308, "", "a",
    "\x00", "9" * 5000, "../..", [], [[]], {}, {"": None}, [None] * 3, [-1], [2**40, 2**40],
    float("inf"), float("nan"), "{{", "é" * 40, {"a": {"b": []}},
)  # fmt: skip


def damaged_json(value: Any, generator: random.Random) -> bytes:
    """Return a JSON document like `value` with some of it replaced, lost or doubled, or cut."""
    document = copy.deepcopy(value)
    for _ in range(generator.randint(1, 3)):
        document = _damage(document, generator)
    text = json.dumps(document).encode("utf-8", "surrogatepass")
    return damaged(text, generator) if generator.random() < 0.2 else text


def hostile_json() -> list[bytes]:
    """What any reader of JSON must stand."""
    return [
        b"", b"null", b"[]", b"1", b'"a"', b"{", b'{"a":', b"\xff\xfe", b"\xef\xbb\xbf{}",
        b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b"9" * DEEP, b'{"a": 1e999}',
        b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": 1, "a": 2}',
    ]  # fmt: skip


def _damage(value: Any, generator: random.Random) -> Any:
    """Go down at random, and replace what is there."""
    if isinstance(value, dict) and value and generator.random() < 0.85:
        key = generator.choice(list(value))
        choice = generator.random()
        if choice < 0.1:
            del value[key]
        elif choice < 0.2:
            value[generator.choice(("", "x", key + "s"))] = value[key]
        else:
            value[key] = _damage(value[key], generator)
        return value
    if isinstance(value, list) and value and generator.random() < 0.85:
        place = generator.randrange(len(value))
        if generator.random() < 0.2:
            return value[:place] + value[place:] * 2
        value[place] = _damage(value[place], generator)
        return value
    return copy.deepcopy(generator.choice(_STRANGE))


def damaged_text(text: str, pieces: tuple[str, ...], generator: random.Random) -> str:
    """Return the text with pieces put in, taken out, or doubled."""
    for _ in range(generator.randint(1, 4)):
        place = generator.randint(0, len(text))
        choice = generator.randrange(3)
        if choice == 0:
            text = text[:place] + generator.choice(pieces) + text[place:]
        elif choice == 1:
            text = text[:place] + text[place + generator.randint(1, 10) :]
        else:
            text = text[:place] + text[place : place + generator.randint(1, 30)] + text[place:]
    return text
