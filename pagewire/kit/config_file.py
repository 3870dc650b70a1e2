"""Reading the optional YAML file of settings, with every key accounted for.

A key is a setting's name with hyphens or underscores, at the top or inside a mapping under the
name of the nested dataclass that holds it (a section). Unknown and doubled keys are errors. It
does not read the values: `pagewire.kit.config` does, as it does for flags.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagewire.kit.config_fields import Setting

_MAX_FILE_BYTES = 1024 * 1024


def read_config_file(path: Path, settings: list[Setting]) -> dict[str, tuple[str, Any]]:
    """Return (key as written, YAML value) by the setting's dest.

    Raises:
        ValueError: With one line: the file cannot be read, or a key is unknown or given twice.
    """
    sections = {name for setting in settings for name in setting.path[:-1]}
    found: dict[str, tuple[str, Any]] = {}
    for trail, value in _leaves(_parse(path), sections):
        written = ".".join(trail)
        setting = _match(trail, settings)
        if setting is None:
            raise ValueError(f"{written} in {path}: unknown key{_suggest(trail[-1], settings)}")
        if setting.dest in found:
            other = found[setting.dest][0]
            raise ValueError(f"{written} in {path}: given twice (also as {other})")
        found[setting.dest] = (written, value)
    return found


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                is_text = isinstance(key, yaml.ScalarNode)
                problem = f"has {key.value} twice" if is_text else "has a key that is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _parse(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"--config {path}: is larger than {_MAX_FILE_BYTES} bytes")
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # a safe loader
    except OSError as exc:
        raise ValueError(f"--config {path}: {exc.strerror}") from exc
    except RecursionError as exc:
        raise ValueError(f"--config {path}: is nested too deeply") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(exc, "problem", None) or "is no text"
        raise ValueError(f"--config {path}: is not valid YAML{place}: {problem}") from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"--config {path}: must be a mapping of settings")
    return content


def _leaves(
    content: Mapping[Any, Any], sections: set[str], trail: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield values with the keys that lead to them; a mapping under a section's name is entered.

    A name may be a section and a setting at once (`model`): only a mapping is the former.
    """
    for key, value in content.items():
        here = (*trail, str(key))
        if str(key).replace("-", "_") in sections and isinstance(value, dict):
            yield from _leaves(value, sections, here)
        else:
            yield here, value


def _match(trail: tuple[str, ...], settings: list[Setting]) -> Setting | None:
    """Find the setting of a key; the sections it stands in are the last ones of its path."""
    *sections, last = (part.replace("-", "_") for part in trail)
    inside = [
        s for s in settings if list(s.path[:-1])[len(s.path) - 1 - len(sections) :] == sections
    ]
    by_key = [setting for setting in inside if setting.key == last]
    by_name = [setting for setting in inside if setting.name == last]
    matches = by_key or by_name
    return matches[0] if len(matches) == 1 else None


def _suggest(key: str, settings: list[Setting]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), [s.key for s in settings], n=1)
    return f"; did you mean {close[0]}?" if close else ""
