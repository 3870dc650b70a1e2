"""JSON schemas of outputs that have to be calls: what `tool_choice` required and named force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.tools.tool import Tool

MAX_DEPTH = 100

# What holds values and not schemas: a "$ref" in there is data.
_DATA_KEYS = frozenset(("const", "enum", "default", "examples"))
# What holds schemas by names of the client's: none of these names is a keyword.
_SCHEMAS_BY_NAME = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
)


class SchemaTooDeepError(ValueError):
    """A schema is nested deeper than `MAX_DEPTH`."""


def calls_schema(tools: Sequence[Tool], parallel: bool) -> dict[str, Any]:
    """Return the schema of an array of calls, at least one; at most one without `parallel`.

    Raises:
        SchemaTooDeepError: The parameters of a tool are.
    """
    limits = {"minItems": 1} if parallel else {"minItems": 1, "maxItems": 1}
    return {
        "type": "array",
        **limits,
        "items": {"anyOf": [_call(tool, place) for place, tool in enumerate(tools)]},
        # References within a schema are to its own root, so each becomes a root of its own here.
        "$defs": {
            str(place): _moved(arguments_schema(tool), f"#/$defs/{place}")
            for place, tool in enumerate(tools)
        },
    }


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are always an object."""
    schema = {name: value for name, value in tool.parameters.items() if name != "$schema"}
    if "type" in schema or "$ref" in schema or "anyOf" in schema or "allOf" in schema:
        return schema
    return {"type": "object", "properties": {}, **schema}


def _call(tool: Tool, place: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [tool.name]},
            "arguments": {"$ref": f"#/$defs/{place}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, root: str, depth: int = 0) -> Any:
    """Copy a schema with its references pointing to where its root is now."""
    if depth > MAX_DEPTH:
        raise SchemaTooDeepError
    if isinstance(schema, list):
        return [_moved(item, root, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _moved_member(name, value, root, depth + 1) for name, value in schema.items()}


def _moved_member(name: str, value: Any, root: str, depth: int) -> Any:
    if name in _DATA_KEYS:
        return value
    if name in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {key: _moved(schema, root, depth + 1) for key, schema in value.items()}
    if name == "$ref" and isinstance(value, str) and value.startswith("#"):
        return f"{root}{value[1:]}"
    return _moved(value, root, depth)
