"""Text in which some parts have forms: from vLLM's structural tags to a grammar in Lark.

Text is free up to a trigger; from there on it has to be one of the structures that begin with it:
its beginning, JSON of its schema, its end. Then it is free again. Pure text work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_STRUCTURES = 256
MAX_TRIGGERS = 16
MAX_TAG_CHARS = 1024

_FREE = "/(.|\\n)*/"


class StructuralTagError(ValueError):
    """What is wrong, in a sentence for the client."""


def structural_tag_grammars(
    value: Any, schema_grammar: Callable[[Any], str]
) -> tuple[str, dict[str, str]]:
    """Return the grammar, and those that it refers to by name.

    Args:
        value: `{"structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}`.
        schema_grammar: From a JSON schema to its grammar.

    Raises:
        StructuralTagError: The value is not of that form.
    """
    structures, triggers = _members(value)
    lines, schemas = [], dict[str, str]()
    parts: dict[str, list[str]] = {trigger: [] for trigger in triggers}
    for place, structure in enumerate(structures):
        begin, end = _tag(structure, "begin", place), _tag(structure, "end", place)
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if trigger is None:
            raise StructuralTagError(f"structures[{place}].begin begins with no trigger")
        if not isinstance(structure.get("schema"), dict):
            raise StructuralTagError(f"structures[{place}].schema must be a JSON object")
        schemas[f"schema_{place}"] = schema_grammar(structure["schema"])
        rest = (_quoted(begin[len(trigger) :]), f"@schema_{place}", _quoted(end))
        parts[trigger].append(f"structure_{place}")
        lines.append(f"structure_{place}: {' '.join(each for each in rest if each)}")
    used = {trigger: names for trigger, names in parts.items() if names}
    for place, (trigger, names) in enumerate(used.items()):
        lines.append(f"part_{place}: text_{place} ({' | '.join(names)})")
        lines.append(f"text_{place}[stop={json.dumps(trigger)}]: {_FREE}")
    choices = " | ".join(f"part_{place}" for place in range(len(used)))
    return "\n".join([f"start: ({choices})* REST", f"REST: {_FREE}", *lines]), schemas


def _members(value: Any) -> tuple[list[Any], list[str]]:
    structures = value.get("structures") if isinstance(value, dict) else None
    triggers = value.get("triggers") if isinstance(value, dict) else None
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_STRUCTURES:
        raise StructuralTagError(f"needs 1 to {MAX_STRUCTURES} structures")
    if not isinstance(triggers, list) or not 0 < len(triggers) <= MAX_TRIGGERS:
        raise StructuralTagError(f"needs 1 to {MAX_TRIGGERS} triggers")
    if not all(isinstance(each, str) and 0 < len(each) <= MAX_TAG_CHARS for each in triggers):
        raise StructuralTagError(f"a trigger has 1 to {MAX_TAG_CHARS} characters")
    if not all(isinstance(each, dict) for each in structures):
        raise StructuralTagError("a structure is an object with begin, schema and end")
    return structures, triggers


def _tag(structure: dict[str, Any], name: str, place: int) -> str:
    text = structure.get(name)
    if not isinstance(text, str) or len(text) > MAX_TAG_CHARS:
        rule = f"must be a text of at most {MAX_TAG_CHARS} characters"
        raise StructuralTagError(f"structures[{place}].{name} {rule}")
    return text


def _quoted(text: str) -> str:
    """As a string of the grammar; none where there is no text."""
    return json.dumps(text) if text else ""
