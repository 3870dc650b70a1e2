"""Reading and writing one setting's value, by the type of its field.

Text comes from flags and the environment, plain YAML values from files; both give the same Python
value or a `ValueError` whose text is a rule ("must be an integer"). It does not know where the
value came from: `pagewire.kit.config` puts the place in front.
"""

from __future__ import annotations

import enum
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_NONE = "none"
_BYTES = re.compile(r"(\d[\d_]*(?:\.\d+)?) ?([kmgt]i?)?b?")
_BYTE_UNITS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The type of a setting, taken apart."""

    options: tuple[Any, ...]
    """The members of a union without None; one for a plain type. Tried in order."""
    optional: bool
    """None is allowed; it is written `none`."""
    item: ValueKind | None
    """Type of the elements when the setting is a tuple."""
    in_bytes: bool
    """The number may have a unit: 512M, 4GiB."""

    @classmethod
    def of(cls, hint: Any, *, in_bytes: bool = False) -> ValueKind:
        """Take a type hint apart.

        Raises:
            TypeError: The type is not supported.
        """
        members = [hint]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            members = list(typing.get_args(hint))
        options = tuple(member for member in members if member is not type(None))
        if len(options) == 1 and typing.get_origin(options[0]) is tuple:
            arguments = typing.get_args(options[0])
            if len(arguments) != 2 or arguments[1] is not ...:
                raise TypeError(f"{hint}: only tuple[X, ...] is supported")
            item = cls.of(arguments[0])
            return cls((tuple,), len(members) > 1, item, in_bytes)
        for option in options:
            if not _is_supported(option):
                raise TypeError(f"{hint} is not a supported type of a setting")
        return cls(options, len(options) < len(members), None, in_bytes)

    @property
    def is_bool(self) -> bool:
        return self.options == (bool,) and not self.optional

    @property
    def is_tuple(self) -> bool:
        return self.item is not None

    @property
    def metavar(self) -> str:
        """What `--help` shows for the value."""
        if self.item is not None:
            return f"{self.item.metavar}[,...]"
        return "|".join(_metavar(option) for option in self.options)

    @property
    def rule(self) -> str:
        """What a value must be, for error messages."""
        rules = [_rule(option, self.in_bytes) for option in self.options]
        return "must be " + " or ".join(rules + (["none"] if self.optional else []))

    def from_text(self, text: str) -> Any:
        """Read a value from a flag or the environment.

        Raises:
            ValueError: With the rule that the text breaks.
        """
        if self.optional and text == _NONE:
            return None
        if self.item is not None:
            if (elements := _json_list(text)) is not None:
                return self.from_yaml(elements)
            parts = [part.strip() for part in text.split(",")]
            return tuple(self.item.from_text(part) for part in parts if part)
        for option in self.options:
            try:
                return _from_text(option, text, self.in_bytes)
            except (ValueError, KeyError, OverflowError):
                continue
        raise ValueError(self.rule)

    def from_yaml(self, value: Any) -> Any:
        """Read a value from a file.

        Raises:
            ValueError: With the rule that the value breaks.
        """
        if value is None and self.optional:
            return None
        if self.item is not None and isinstance(value, list):
            return tuple(self.item.from_yaml(element) for element in value)
        if isinstance(value, str):
            return self.from_text(value)
        if isinstance(value, dict) and any(_is_dict(option) for option in self.options):
            return value
        if any(_fits_yaml(option, value) for option in self.options):
            return self.from_text(_plain_text(value))
        hint = "; put it in quotes" if str in self.options else ""
        raise ValueError(self.rule + hint)

    def to_text(self, value: Any) -> str:
        """Write a value so that `from_text` reads it back.

        Raises:
            ValueError: The value has no such form (a comma in an element of a tuple).
        """
        if value is None:
            return _NONE
        if self.item is not None:
            texts = [self.item.to_text(element) for element in value]
            if any("," in text for text in texts):
                raise ValueError("must not have a comma in an element")
            return ",".join(texts)
        if isinstance(value, enum.Enum):
            return str(value.value)
        if isinstance(value, dict):
            return json.dumps(value)
        return repr(value) if isinstance(value, float) else _plain_text(value)


def _plain_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_supported(option: Any) -> bool:
    if typing.get_origin(option) in (Literal, dict):
        return True
    scalars = (bool, int, float, str, Path, dict)
    return option in scalars or (isinstance(option, type) and issubclass(option, enum.Enum))


def _is_dict(option: Any) -> bool:
    return option is dict or typing.get_origin(option) is dict


def _choices(option: Any) -> list[Any] | None:
    """Return the values that a closed type allows, None for an open one."""
    if typing.get_origin(option) is Literal:
        return list(typing.get_args(option))
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return [member.value for member in option]
    return None


def _metavar(option: Any) -> str:
    choices = _choices(option)
    if choices is not None:
        return "{" + ",".join(map(str, choices)) + "}"
    if _is_dict(option):
        return "JSON"
    return str(option.__name__).upper()


def _rule(option: Any, in_bytes: bool) -> str:
    choices = _choices(option)
    if choices is not None:
        return "one of " + ", ".join(map(str, choices))
    if option is int and in_bytes:
        return "a number of bytes such as 1073741824, 512M or 1GiB"
    names = {bool: "true or false", int: "an integer", float: "a finite number", str: "text"}
    return names.get(option, "a path" if option is Path else "a JSON object")


def _from_text(option: Any, text: str, in_bytes: bool) -> Any:
    """Read one member of the union; any ValueError or KeyError means that it does not fit."""
    if typing.get_origin(option) is Literal:
        return {str(choice): choice for choice in typing.get_args(option)}[text]
    if isinstance(option, type) and issubclass(option, enum.Enum):
        return {str(member.value): member for member in option}[text]
    if option is bool:
        return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
    if option is int:
        return _read_bytes(text) if in_bytes else int(text)
    if option is float:
        return _finite(float(text))
    if option is str:
        return text
    if option is Path:
        return Path(text).expanduser()
    return _read_object(text)


def _read_bytes(text: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("must be a number of bytes")
    number, unit = match.groups()
    if unit is None:
        return int(number)
    return round(float(number) * _BYTE_UNITS[unit])


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number


def _json_list(text: str) -> list[Any] | None:
    """Return the elements of `["a", "b"]`, which vLLM's flags take; None: it is no such list."""
    try:
        value = json.loads(text) if text.startswith("[") else None
    except ValueError:  # an IPv6 address, for example
        return None
    return value if isinstance(value, list) else None


def _read_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


def _fits_yaml(option: Any, value: Any) -> bool:
    """Say whether YAML gave a scalar of the setting's type; True is not an integer here."""
    if option is bool:
        return isinstance(value, bool)
    if option in (int, float):
        numbers = (int,) if option is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    choices = _choices(option)
    return choices is not None and any(value == c and type(value) is type(c) for c in choices)
