"""JSON schemas as applications write them, made from a seed, each with the question it is for.

A schema describes a thing (an order, a bug report, ...) with some of the fields that such a thing
has. Most strings and arrays are bounded, as a user of a small model would do it, and not all.
Between them the schemas use nested objects, arrays, enums, constants, alternatives, definitions,
recursion, patterns, formats, lengths, ranges, booleans and null. Knows nothing of grammars.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class SchemaCase:
    """A schema, and what to ask so that an answer of that form makes sense."""

    name: str
    schema: Schema
    question: str


THINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "customer": (
        "a customer of an online shop",
        ("name", "email", "age", "address", "tags", "active", "joined_on", "tier", "referrer"),
    ),
    "order": (
        "an order in an online shop",
        ("id", "items", "total", "currency", "status", "ordered_on", "address", "gift", "comment"),
    ),
    "recipe": (
        "a recipe for a simple dish",
        ("title", "ingredients", "steps", "servings", "minutes", "difficulty", "vegan", "rating"),
    ),
    "bug report": (
        "a bug report about a text editor",
        ("title", "summary", "severity", "steps", "version", "reporter", "regression", "labels"),
    ),
    "calendar event": (
        "a meeting in a calendar",
        ("title", "starts_at", "minutes", "attendees", "location", "recurring", "comment"),
    ),
    "film": (
        "a film from the nineties",
        ("title", "year", "director", "genres", "rating", "cast", "minutes", "summary"),
    ),
    "weather reading": (
        "the weather in Lisbon on a day in June",
        ("city", "celsius", "humidity", "wind", "sky", "measured_on", "station", "alerts"),
    ),
    "flight": (
        "a flight from Paris to Rome",
        ("code", "origin", "destination", "starts_at", "seats", "status", "price", "stops"),
    ),
    "employee": (
        "an employee of a small company",
        ("name", "email", "role", "salary", "skills", "manager", "joined_on", "remote"),
    ),
    "invoice": (
        "an invoice of a plumber",
        ("id", "items", "total", "currency", "paid", "ordered_on", "customer", "comment"),
    ),
    "server": (
        "a web server in a data centre",
        ("host", "ip", "port", "region", "tags", "active", "load", "disks", "owner"),
    ),
    "review": (
        "a review of a hotel",
        ("title", "summary", "stars", "author", "pros", "cons", "recommended", "visited_on"),
    ),
}
"""Kind of thing -> how to ask for one, and the fields that it may have."""


def make_cases(number: int, seed: int = 0) -> list[SchemaCase]:
    """The first `number` cases of a seed; each depends on the seed and its own place alone."""
    return [make_case(random.Random(f"{seed}/{index}"), index) for index in range(number)]


def make_case(rng: random.Random, index: int) -> SchemaCase:
    thing = rng.choice(sorted(THINGS))
    description, fields = THINGS[thing]
    maker = _Maker(rng)
    schema, question = maker.root(thing, fields), f"Describe {description} as JSON."
    if "properties" in schema:
        question = f"{question} Give these fields: {', '.join(schema['properties'])}."
    if maker.definitions:
        schema["$defs"] = maker.definitions
    return SchemaCase(f"{index}-{thing.replace(' ', '-')}", {"$schema": DIALECT} | schema, question)


class _Maker:
    """Makes the parts of one schema; keeps the definitions that they refer to."""

    def __init__(self, rng: random.Random) -> None:
        self.definitions: dict[str, Schema] = {}
        self._rng = rng
        self._fields: dict[str, Callable[[], Schema]] = {
            **dict.fromkeys(("items", "cast", "attendees", "disks"), self._parts),
            **dict.fromkeys(("ingredients", "steps", "tags", "labels", "skills"), self._texts),
            **dict.fromkeys(("genres", "stops", "pros", "cons", "alerts"), self._texts),
            **dict.fromkeys(("summary", "comment"), self._prose),
            **dict.fromkeys(("title", "name", "location", "city", "station"), self._short),
            **dict.fromkeys(("role", "origin", "destination", "host"), self._short),
            **dict.fromkeys(("active", "gift", "vegan", "regression", "remote"), self._flag),
            **dict.fromkeys(("recurring", "paid", "recommended"), self._flag),
            **dict.fromkeys(("tier", "status", "difficulty", "severity", "sky"), self._choice),
            **dict.fromkeys(("currency", "region"), self._choice),
            **dict.fromkeys(("age", "servings", "minutes", "seats", "port", "year"), self._count),
            **dict.fromkeys(("stars", "humidity"), self._count),
            **dict.fromkeys(("rating", "celsius", "wind", "load", "salary"), self._measure),
            **dict.fromkeys(("total", "price"), self._money),
            **dict.fromkeys(("joined_on", "ordered_on", "measured_on", "visited_on"), self._date),
            **dict.fromkeys(("reporter", "director", "author", "manager"), self._person),
            **dict.fromkeys(("customer", "owner", "referrer"), self._optional_person),
            **dict.fromkeys(("id", "code", "version"), self._code),
            "starts_at": lambda: {"type": "string", "format": "date-time"},
            "email": lambda: {"type": "string", "format": "email", "maxLength": 40},
            "ip": lambda: {"type": "string", "format": "ipv4"},
            "address": self._address,
        }

    def root(self, thing: str, fields: tuple[str, ...]) -> Schema:
        """Mostly an object; now and then an array of them, a tree, or one value."""
        kind = self._rng.random()
        if kind < 0.06:
            item = self._object(fields, self._rng.randint(2, 3))
            return {"type": "array", "items": item, "minItems": 1, "maxItems": 3}
        if kind < 0.10:
            return self._tree(thing)
        if kind < 0.14:
            return self._one_of_several_values()
        return {"title": thing, **self._object(fields, self._rng.randint(2, 6))}

    def _object(self, fields: tuple[str, ...], number: int) -> Schema:
        names = self._rng.sample(fields, min(number, len(fields)))
        properties = {name: self._fields[name]() for name in names}
        if self._rng.random() < 0.2:
            properties = {
                "kind": {"const": self._rng.choice(["v1", "draft", "final"])}
            } | properties
        required = [name for name in properties if self._rng.random() < 0.75]
        schema: Schema = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if self._rng.random() < 0.9:
            schema["additionalProperties"] = False
        return schema

    def _tree(self, thing: str) -> Schema:
        """A definition that refers to itself."""
        children = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
        self.definitions["node"] = {
            "type": "object",
            "properties": {"title": self._short(), "children": children},
            "required": ["title"],
            "additionalProperties": False,
        }
        root = {"topic": {"const": thing}, "root": {"$ref": "#/$defs/node"}}
        return {
            "type": "object",
            "properties": root,
            "required": ["topic", "root"],
            "additionalProperties": False,
        }

    def _one_of_several_values(self) -> Schema:
        return self._rng.choice(
            [
                self._choice(),
                {"anyOf": [self._count(), self._short(), {"type": "null"}]},
                {"type": "array", "items": self._measure(), "minItems": 2, "maxItems": 5},
                self._code(),
            ]
        )

    def _parts(self) -> Schema:
        """An array of small objects, with a money value that a definition describes."""
        properties = {"name": self._short(), "count": self._count()}
        if self._rng.random() < 0.5:
            properties["price"] = self._money()
        part = {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
        return {"type": "array", "items": part, "minItems": 1, "maxItems": self._rng.randint(2, 3)}

    def _texts(self) -> Schema:
        schema: Schema = {"type": "array", "items": self._short()}
        if self._rng.random() < 0.9:
            schema |= {"minItems": self._rng.randint(0, 2), "maxItems": self._rng.randint(2, 5)}
        return schema

    def _prose(self) -> Schema:
        if self._rng.random() < 0.3:
            return {"type": "string", "description": "One sentence."}
        return {"type": "string", "minLength": 1, "maxLength": self._rng.randint(60, 160)}

    def _short(self) -> Schema:
        if self._rng.random() < 0.15:
            return {"type": "string"}
        return {"type": "string", "minLength": 1, "maxLength": self._rng.randint(12, 40)}

    def _flag(self) -> Schema:
        return {"type": "boolean"} if self._rng.random() < 0.8 else {"type": ["boolean", "null"]}

    def _choice(self) -> Schema:
        words = ["low", "medium", "high", "open", "closed", "unknown"]
        values = self._rng.sample(words, self._rng.randint(2, 5))
        return {"enum": [*values, None]} if self._rng.random() < 0.15 else {"enum": values}

    def _count(self) -> Schema:
        low = self._rng.choice([0, 1, 10])
        high = low + self._rng.choice([5, 99, 2000])
        kind = self._rng.random()
        if kind < 0.2:
            return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
        if kind < 0.3:
            return {"type": "integer", "minimum": low, "maximum": high, "multipleOf": 5}
        return {"type": "integer", "minimum": low, "maximum": high}

    def _measure(self) -> Schema:
        if self._rng.random() < 0.5:
            return {"type": "number", "minimum": -40, "maximum": 60}
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1000}

    def _money(self) -> Schema:
        amount = {"type": "string", "pattern": r"^[0-9]{1,5}\.[0-9]{2}$"}
        self.definitions["money"] = {
            "type": "object",
            "properties": {"amount": amount, "currency": {"enum": ["EUR", "USD", "GBP"]}},
            "required": ["amount", "currency"],
            "additionalProperties": False,
        }
        return {"$ref": "#/$defs/money"}

    def _date(self) -> Schema:
        return {"type": "string", "format": "date"}

    def _code(self) -> Schema:
        patterns = [r"^[A-Z]{2}-[0-9]{3,6}$", r"^[a-f0-9]{8}$", r"^(v|V)?[0-9]+\.[0-9]{1,2}$"]
        if self._rng.random() < 0.3:
            return {"type": "string", "format": "uuid"}
        return {"type": "string", "pattern": self._rng.choice(patterns)}

    def _person(self) -> Schema:
        self.definitions["person"] = {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 30}, "age": self._count()},
            "required": ["name"],
            "additionalProperties": False,
        }
        return {"$ref": "#/$defs/person"}

    def _optional_person(self) -> Schema:
        return {"anyOf": [self._person(), {"type": "null"}]}

    def _address(self) -> Schema:
        fields = {
            "street": {"type": "string", "maxLength": 40},
            "city": {"type": "string", "maxLength": 20},
            "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        }
        required = self._rng.sample(sorted(fields), 2)
        return {
            "type": "object",
            "properties": fields,
            "required": required,
            "additionalProperties": False,
        }
