from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema

from tests.json_schemas import make_cases

NUMBER = 300
KEYWORDS = {
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("enum", "const", "anyOf", "$defs", "$ref", "pattern", "format", "minLength", "maxLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            yield name
            yield from keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keywords(value)


def test_each_is_a_valid_json_schema() -> None:
    for case in make_cases(NUMBER):
        jsonschema.Draft202012Validator.check_schema(case.schema)


def test_they_differ_and_use_every_keyword() -> None:
    cases = make_cases(NUMBER)
    texts = {json.dumps(case.schema) for case in cases}
    assert len(texts) > 0.9 * NUMBER
    assert set().union(*(keywords(case.schema) for case in cases)) >= KEYWORDS


def test_the_same_seed_gives_the_same_cases() -> None:
    assert make_cases(20) == make_cases(40)[:20]
    assert make_cases(20) != make_cases(20, seed=1)
