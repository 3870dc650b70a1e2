from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from gateway.tools.call_schema import SchemaTooDeepError, arguments_schema, calls_schema
from gateway.tools.tool import Tool

TREE = {
    "type": "object",
    "properties": {
        "child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "unit": {"$ref": "#/$defs/unit"},
        "$ref": {"type": "integer"},
        "kind": {"const": {"$ref": "#/x"}},
    },
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F"]}},
}
OTHER = {
    "type": "object",
    "properties": {"unit": {"$ref": "#/$defs/unit"}},
    "required": ["unit"],
    "$defs": {"unit": {"enum": ["m"]}},
}
TOOLS = [Tool("tree", TREE), Tool("other", OTHER), Tool("bare")]

GOOD: list[Any] = [
    [{"name": "bare", "arguments": {}}],
    [{"name": "tree", "arguments": {"unit": "C", "child": {"unit": "F", "child": None}}}],
    [{"name": "tree", "arguments": {"$ref": 1, "kind": {"$ref": "#/x"}}}],
    [{"name": "other", "arguments": {"unit": "m"}}, {"name": "bare", "arguments": {"x": 1}}],
]
BAD: list[Any] = [
    [],
    {},
    [{"name": "nobody", "arguments": {}}],
    [{"name": "bare"}],
    [{"name": "bare", "arguments": 1}],
    [{"name": "bare", "arguments": {}, "more": 1}],
    [{"name": "tree", "arguments": {"unit": "m"}}],
    [{"name": "tree", "arguments": {"child": {"unit": "m"}}}],
    [{"name": "other", "arguments": {"unit": "C"}}],
    [{"name": "other", "arguments": {}}],
]


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("value", GOOD)
def test_calls_of_the_tools_are_valid(value: Any) -> None:
    assert is_valid(value, calls_schema(TOOLS, parallel=True))


@pytest.mark.parametrize("value", BAD)
def test_everything_else_is_not(value: Any) -> None:
    assert not is_valid(value, calls_schema(TOOLS, parallel=True))


def test_without_parallel_calls_there_is_one() -> None:
    schema = calls_schema(TOOLS, parallel=False)
    call = {"name": "bare", "arguments": {}}
    assert is_valid([call], schema)
    assert not is_valid([call, call], schema)


def test_arguments_are_an_object_whatever_the_schema_leaves_open() -> None:
    assert arguments_schema(Tool("x")) == {"type": "object", "properties": {}}
    named = arguments_schema(Tool("x", {"$schema": "y", "properties": {"a": {}}}))
    assert named == {"type": "object", "properties": {"a": {}}}
    assert arguments_schema(Tool("x", TREE)) == TREE


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(SchemaTooDeepError):
        calls_schema([Tool("x", schema)], parallel=True)


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "properties"])
def test_a_property_that_is_named_like_a_keyword_is_a_schema_all_the_same(name: str) -> None:
    parameters = {
        "type": "object",
        "properties": {name: {"$ref": "#/$defs/unit"}},
        "$defs": {"unit": {"enum": ["m"]}},
    }
    schema = calls_schema([Tool("x", parameters)], parallel=True)
    assert is_valid([{"name": "x", "arguments": {name: "m"}}], schema)
    assert not is_valid([{"name": "x", "arguments": {name: "km"}}], schema)
