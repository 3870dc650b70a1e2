"""Small words for JSON schemas."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def one_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    return one_of(schema, NULL)


def constant(value: Any) -> Schema:
    return {"const": value}


def words(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def integer(low: int, high: int | None = None) -> Schema:
    return {**INTEGER, "minimum": low} | ({} if high is None else {"maximum": high})


def number(low: float, high: float) -> Schema:
    return {**NUMBER, "minimum": low, "maximum": high}


def closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def body(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """Return the schema of a request's body: optional fields may be null, unknown ones pass."""
    nullables = {name: nullable(schema) for name, schema in optional.items()}
    return {"type": "object", "properties": required | nullables, "required": list(required)}
