"""Typed reading of one JSON object: each field is asked for by name and kind.

Errors name the field and say what it must be. What nobody asked for is unknown; `null` counts as
absent, as in OpenAI's API. It knows no endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.kit.errors import InvalidRequestError

_INT_BOUND = 2**64


class Fields:
    """Reads a JSON object; keeps which names were asked for."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        """Read `values`, found at `path` of the body ("": the body itself)."""
        self._values = values
        self._path = path
        self._known: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """Return the raw value; None if it is absent or null."""
        self._known.add(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return None if value is None else check_text(value, self.path(name))

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise invalid(self.path(name), "is required: give a string")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.path(name), value, "true or false")
        return value

    def integer(self, name: str) -> int | None:
        value = self.get(name)
        return None if value is None else check_integer(value, self.path(name))

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.path(name), value, "a number")
        if abs(value) > _INT_BOUND:
            raise invalid(self.path(name), "is too large")
        return float(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        values = self.array(name)
        if values is None:
            return None
        return tuple(check_integer(v, f"{self.path(name)}[{i}]") for i, v in enumerate(values))

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Read a string, or an array of strings."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return (check_text(value, self.path(name)),)
        if not isinstance(value, list):
            raise wrong_type(self.path(name), value, "a string or an array of strings")
        return tuple(check_text(v, f"{self.path(name)}[{i}]") for i, v in enumerate(value))

    def array(self, name: str) -> list[Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.path(name), value, "an array")
        return value

    def object(self, name: str) -> Fields | None:
        """Read an object, to be read in turn."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong_type(self.path(name), value, "an object")
        return Fields(value, self.path(name))

    def items(self) -> Mapping[str, Any]:
        """Return all that the object holds, as it is."""
        return self._values

    def asked(self) -> frozenset[str]:
        """Return the names that somebody asked for, there or not."""
        return frozenset(self._known)

    def unknown(self) -> list[str]:
        """Return the names that are there and that nobody asked for."""
        return [name for name in self._values if name not in self._known]


def check_text(value: Any, path: str) -> str:
    """Return the string.

    Raises:
        InvalidRequestError: It is none, or holds half a character.
    """
    if not isinstance(value, str):
        raise wrong_type(path, value, "a string")
    if not value.isascii():
        # JSON can escape one half of a surrogate pair, which no UTF-8 text holds.
        try:
            value.encode()
        except UnicodeEncodeError:
            raise invalid(path, "holds a lone surrogate, which is no character") from None
    return value


def check_integer(value: Any, path: str) -> int:
    """Return the integer; a float without a fraction is one, true and false are not.

    Raises:
        InvalidRequestError: It is none, or has more than 64 bits.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(path, value, "an integer")
    if not -_INT_BOUND < value < _INT_BOUND:
        raise invalid(path, "does not fit in 64 bits")
    return value


def invalid(path: str, rule: str) -> InvalidRequestError:
    """Return the error of a field that breaks a rule."""
    return InvalidRequestError(f"{path}: {rule}", reason="INVALID_PARAMETER", field=path)


def wrong_type(path: str, value: Any, wanted: str) -> InvalidRequestError:
    """Return the error of a field of the wrong type."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    found = names.get(type(value), "a number")
    return invalid(path, f"must be {wanted}, not {found}")
