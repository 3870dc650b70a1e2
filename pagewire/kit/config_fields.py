"""What a configuration dataclass says about its settings: flags, names, defaults, help.

Walks a frozen dataclass and the dataclasses nested in it into a flat list of `Setting`s; the help
text of a setting is the string literal under its field. It reads no values: see
`pagewire.kit.config`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass
from functools import cache
from typing import Any

from pagewire.kit.config_values import ValueKind

ENV_PREFIX = "PAGEWIRE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a configuration."""

    path: tuple[str, ...]
    """Attribute names from the root, for example ("cache", "block_size")."""
    flag: str
    """The main flag, for example --block-size."""
    aliases: tuple[str, ...]
    """More flags of the same meaning."""
    kind: ValueKind
    """How its values are read and written."""
    default: Any
    """Default value; `dataclasses.MISSING` if the setting is required."""
    owner: type
    """The dataclass that holds it."""
    group: str
    """First line of the docstring of the dataclass that holds it."""
    is_secret: bool = False
    """No message shows its value."""

    @property
    def help(self) -> str:
        """The text under the field, on one line; read from the source, which takes its time."""
        return _field_texts(self.owner).get(self.name, "")

    @property
    def dest(self) -> str:
        return ".".join(self.path)

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def key(self) -> str:
        """The flag's name with underscores: the spelling in files and in the environment."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.key.upper()

    @property
    def required(self) -> bool:
        return self.default is MISSING


def settings_of(cls: type) -> list[Setting]:
    """Return the settings of a dataclass and of those nested in it, in order.

    Raises:
        TypeError: Two fields claim one flag, or a field's type is not supported.
    """
    settings = list(_walk(cls, (), MISSING))
    claimed: dict[str, str] = {}
    for setting in settings:
        for flag in (setting.flag, *setting.aliases):
            if flag in claimed:
                raise TypeError(f"{flag} is claimed by {claimed[flag]} and by {setting.dest}")
            claimed[flag] = setting.dest
    return settings


def nested_fields(cls: type) -> dict[str, type]:
    """Return the fields of a dataclass that hold a dataclass, with their types."""
    hints = _type_hints(cls)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(cls)
        if field.init and dataclasses.is_dataclass(hints[field.name])
    }


def _walk(cls: type, path: tuple[str, ...], instance: Any) -> Iterator[Setting]:
    """Yield settings; defaults come from `instance`, the parent's default, if there is one."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is no dataclass")
    hints = _type_hints(cls)
    nested = nested_fields(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default = _default(field) if instance is MISSING else getattr(instance, field.name)
        here = (*path, field.name)
        if field.name in nested:
            yield from _walk(nested[field.name], here, default)
            continue
        flag = field.metadata.get("flag", "--" + field.name.replace("_", "-"))
        yield Setting(
            path=here,
            flag=flag,
            aliases=tuple(field.metadata.get("aliases", ())),
            kind=ValueKind.of(hints[field.name], in_bytes=field.name.endswith("_bytes")),
            default=default,
            owner=cls,
            group=(inspect.getdoc(cls) or cls.__name__).partition("\n")[0].rstrip("."),
            is_secret=field.metadata.get("secret", False),
        )


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields; only to be read. Each is compiled from its text."""
    return typing.get_type_hints(cls)


@cache
def _field_texts(cls: type) -> dict[str, str]:
    """Return the string literal under each field, of the class and its bases; only to be read.

    Kept, for it parses source: once for each class, not for each of its settings.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError):
            continue  # no source here (an interactive session): there is no help text to show
        texts.update(_texts_in(tree.body[0]))
    return texts


def _texts_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    for statement, after in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield statement.target.id, " ".join(after.value.value.split())
