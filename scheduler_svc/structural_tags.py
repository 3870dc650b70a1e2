"""Text in which some parts have forms: from vLLM's structural tags to a grammar in Lark.

Two shapes are known. The first: text is free up to a trigger, from there on it has to be one of the
structures that begin with it, then it is free again. The second is a tree of formats, of which that
is one (`structural_formats`). Pure text work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_svc.structural_formats import (
    MAX_TAGS,
    MAX_TEXT_CHARS,
    MAX_TRIGGERS,
    FormatWriter,
    StructuralTagError,
)


def structural_tag_grammars(
    value: Any, schema_grammar: Callable[[Any], str], regex_term: Callable[[str], str]
) -> tuple[str, dict[str, str]]:
    """Return the grammar, and those that it refers to by name.

    Args:
        value: `{"structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}`, or
            `{"format": {"type": ..., ...}}`.
        schema_grammar: From a JSON schema to its grammar.
        regex_term: From an expression to a term of a grammar.

    Raises:
        StructuralTagError: The value is of neither form.
    """
    writer = FormatWriter(schema_grammar, regex_term)
    if not isinstance(value, dict):
        raise StructuralTagError("must be a JSON object")
    if value.get("format") is None:
        return writer.write(_triggered_tags(value), "structures"), writer.grammars
    if value.get("structures") is not None or value.get("triggers") is not None:
        raise StructuralTagError("format excludes structures and triggers")
    return writer.write(value["format"], "format"), writer.grammars


def _triggered_tags(value: dict[str, Any]) -> dict[str, Any]:
    """Return the format that says the same as structures and triggers."""
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_TAGS:
        raise StructuralTagError(f"needs a format, or 1 to {MAX_TAGS} structures")
    if not isinstance(triggers, list) or not 0 < len(triggers) <= MAX_TRIGGERS:
        raise StructuralTagError(f"needs 1 to {MAX_TRIGGERS} triggers")
    if not all(isinstance(each, str) and 0 < len(each) <= MAX_TEXT_CHARS for each in triggers):
        raise StructuralTagError(f"a trigger has 1 to {MAX_TEXT_CHARS} characters")
    if not all(isinstance(each, dict) for each in structures):
        raise StructuralTagError("a structure is an object with begin, schema and end")
    tags = [_tag(each, f"structures[{place}]", triggers) for place, each in enumerate(structures)]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _tag(structure: dict[str, Any], path: str, triggers: list[str]) -> dict[str, Any]:
    for name in ("begin", "end"):
        text = structure.get(name)
        if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
            rule = f"must be a text of at most {MAX_TEXT_CHARS} characters"
            raise StructuralTagError(f"{path}.{name} {rule}")
    if not structure["begin"].startswith(tuple(triggers)):
        raise StructuralTagError(f"{path}.begin begins with no trigger")
    if not isinstance(structure.get("schema"), dict):
        raise StructuralTagError(f"{path}.schema must be a JSON object")
    content = {"type": "json_schema", "json_schema": structure["schema"]}
    return {"begin": structure["begin"], "content": content, "end": structure["end"]}
