"""Configuration from frozen dataclasses: flag > environment > YAML file > default.

A field `max_model_len` is the flag `--max-model-len`, the variable `PAGEWIRE_MAX_MODEL_LEN` and
the key `max-model-len` (or `max_model_len`) of the file that `--config` names, flat or under the
name of the nested dataclass that holds it. An empty variable counts as unset, which is what
compose files make of one that has no value. The text under the field is its help. Field metadata:
`flag` replaces the flag's name, `aliases` adds flags, `secret` keeps the value out of messages.
Services and the command line call this; it
knows none of their settings.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pagewire.kit.config_fields import ENV_PREFIX, Setting, nested_fields, settings_of

C = TypeVar("C")

CONFIG_ENV = ENV_PREFIX + "CONFIG"
_CONFIG_DEST = "config_file"
_HELP_FLAGS = frozenset(("-h", "--help"))


class ConfigError(Exception):
    """A configuration that cannot be used; the message is one line and names the setting."""

    exit_code = 2


class OneLineParser(argparse.ArgumentParser):
    """A parser that takes no abbreviations and whose errors are a `ConfigError` of one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def load_config(
    cls: type[C],
    *,
    prog: str,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    description: str | None = None,
) -> C:
    """Build the configuration of a process from its command line, environment and file.

    Args:
        cls: A frozen dataclass, dataclasses nested in it.
        prog: Name of the program, for `--help`, which prints and exits with 0.
        argv: Arguments without the program's name; default: those of the process.
        env: Default: that of the process.
        description: First lines of `--help`; default: the docstring of `cls`.

    Raises:
        ConfigError: With one line that names the flag, variable or key and what is allowed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = OneLineParser(prog=prog, description=description or cls.__doc__)
    # Texts come from the source, whose parsing is a good part of what a service's start takes.
    add_arguments(parser, cls, with_help=not _HELP_FLAGS.isdisjoint(arguments))
    namespace = parser.parse_args(arguments)
    return from_namespace(cls, namespace, env)


def add_arguments(parser: argparse.ArgumentParser, cls: type, *, with_help: bool = True) -> None:
    """Add `--config` and a flag for every setting of `cls`, for a sub-command's parser.

    One parser takes one configuration class: nest what belongs together.

    Args:
        parser: Gets them.
        cls: A configuration dataclass.
        with_help: Whether `--help` may be asked for: it needs the settings' texts.
    """
    parser.add_argument(
        "--config",
        dest=_CONFIG_DEST,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"YAML file with settings; flags and environment win over it (env {CONFIG_ENV})",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in settings_of(cls):
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        # Values stay text here, so that every source has the same checks and messages.
        options: dict[str, Any] = {"metavar": setting.kind.metavar}
        if setting.kind.is_bool:
            options = {"action": argparse.BooleanOptionalAction}
        elif setting.kind.is_tuple:
            options["action"] = "append"
        groups[setting.group].add_argument(
            setting.flag,
            *setting.aliases,
            dest=setting.dest,
            default=argparse.SUPPRESS,
            help=_help(setting) if with_help else None,
            **options,
        )


def from_namespace(
    cls: type[C], namespace: argparse.Namespace, env: Mapping[str, str] | None = None
) -> C:
    """Build the configuration from parsed arguments, the environment and the file they name.

    Raises:
        ConfigError: See `load_config`.
    """
    environment = os.environ if env is None else env
    given = vars(namespace)
    settings = settings_of(cls)
    file_name = given.get(_CONFIG_DEST) or environment.get(CONFIG_ENV)
    in_file = {}
    try:
        if file_name:
            # Brings YAML, without which the others start sooner.
            from pagewire.kit.config_file import read_config_file

            in_file = read_config_file(Path(file_name), settings)
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in settings:
        found = _find(setting, given, environment, in_file, str(file_name))
        if found is not None:
            values[setting.dest], sources[setting.dest] = found
    return _Builder(settings, values, sources).build(cls, ())


def to_argv(
    config: Any, only_changed: bool = True, env: Mapping[str, str] | None = None
) -> list[str]:
    """Return the flags that give a child process this configuration.

    Args:
        config: An instance of a configuration dataclass.
        only_changed: Leave out settings that have their default and no variable in `env`, which
            the child would read.
        env: The child's environment; default: that of the process.

    Raises:
        ValueError: With (name, value, rule) if a value has no form on a command line.
    """
    environment = os.environ if env is None else env
    arguments = []
    for setting in settings_of(type(config)):
        value = config
        for name in setting.path:
            value = getattr(value, name)
        if only_changed and value == setting.default and not environment.get(setting.env):
            continue
        if setting.kind.is_bool:
            arguments.append(setting.flag if value else "--no-" + setting.flag[2:])
            continue
        try:
            arguments.append(f"{setting.flag}={setting.kind.to_text(value)}")
        except ValueError as exc:
            raise ValueError(setting.name, value, str(exc)) from exc
    return arguments


def _help(setting: Setting) -> str:
    notes = [f"env {setting.env}"]
    if setting.required:
        notes.insert(0, "required")
    elif setting.default not in (None, (), ""):
        notes.insert(0, f"default: {setting.kind.to_text(setting.default)}")
    return f"{setting.help} ({', '.join(notes)})".strip().replace("%", "%%")


def _find(
    setting: Setting,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    in_file: Mapping[str, tuple[str, Any]],
    file_name: str,
) -> tuple[Any, str] | None:
    """Return the value from the strongest source and how to name that source; None: default."""
    if setting.dest in given:
        raw = given[setting.dest]
        if setting.kind.is_bool:
            return raw, setting.flag if raw else "--no-" + setting.flag[2:]
        joined = ",".join(raw) if isinstance(raw, list) else raw
        source = f"{setting.flag} {_shown(setting, joined)}"
        return _read(setting.kind.from_text, joined, source), source
    if text := environment.get(setting.env, ""):
        source = f"{setting.env}={_shown(setting, text)}"
        return _read(setting.kind.from_text, text, source), source
    if setting.dest in in_file:
        key, value = in_file[setting.dest]
        source = f"{key}: {_shown(setting, value)} in {file_name}"
        return _read(setting.kind.from_yaml, value, source), source
    return None


def _shown(setting: Setting, value: Any) -> Any:
    return "..." if setting.is_secret else value


def _read(reader: Any, raw: Any, source: str) -> Any:
    try:
        return reader(raw)
    except ValueError as exc:
        raise ConfigError(f"{_one_line(source)}: {exc}") from exc


def _one_line(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"


class _Builder:
    """Builds nested dataclasses from values by path, and words what their checks raise."""

    def __init__(
        self, settings: list[Setting], values: Mapping[str, Any], sources: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._values = values
        self._sources = sources

    def build(self, cls: type[C], path: tuple[str, ...]) -> C:
        arguments: dict[str, Any] = {}
        for name, nested in nested_fields(cls).items():
            arguments[name] = self.build(nested, (*path, name))
        for setting in self._settings:
            if setting.path[:-1] != path:
                continue
            if setting.dest in self._values:
                arguments[setting.name] = self._values[setting.dest]
            elif setting.required:
                raise ConfigError(f"{setting.flag} is required (or set {setting.env})")
            else:
                arguments[setting.name] = setting.default
        try:
            return cls(**arguments)
        except ValueError as exc:
            raise ConfigError(self._word(exc, path)) from exc

    def _word(self, exc: ValueError, path: tuple[str, ...]) -> str:
        """Turn ValueError(name, value, rule) into a line that names where the value came from."""
        if len(exc.args) != 3:
            return _one_line(str(exc))
        name, value, rule = exc.args
        candidates = [s for s in self._settings if s.name == name]
        # The nearest setting of that name: checks of a parent may be about a child's field.
        candidates.sort(key=lambda s: s.path[: len(path)] != path)
        if not candidates:
            return _one_line(f"{name} {value}: {rule}")
        setting = candidates[0]
        return _one_line(f"{self._sources.get(setting.dest, f'{setting.flag} {value}')}: {rule}")
