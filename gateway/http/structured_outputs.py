"""The form of an output over HTTP: vLLM's `structured_outputs` and OpenAI's `response_format`.

Only the shape is checked here; whether a schema, expression or grammar can be followed is the
engine's to say, before it admits the request.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.http.fields import Fields, check_text, invalid, wrong_type
from pagewire.kit.errors import InvalidRequestError
from pagewire.sampling_params import StructuredOutputs

_FORMS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


def read_structured_outputs(fields: Fields) -> StructuredOutputs | None:
    """Return the form that the body asks for; None: anything.

    Raises:
        InvalidRequestError: Names the field.
    """
    outputs = fields.object("structured_outputs")
    response_format = fields.object("response_format")
    wanted = _read_response_format(response_format) if response_format is not None else None
    if outputs is None:
        return wanted
    if wanted is not None:
        raise invalid("response_format", "excludes structured_outputs: give one of them")
    return _read_forms(outputs)


def _read_forms(outputs: Fields) -> StructuredOutputs:
    schema, choice = outputs.get("json"), outputs.array("choice")
    values = {
        "json_schema": read_schema(schema, outputs.path("json")) if schema is not None else None,
        "json_object": outputs.boolean("json_object"),
        "regex": outputs.text("regex"),
        "choice": outputs.texts("choice") if choice else (),
        "grammar": outputs.text("grammar"),
        "structural_tag": _read_tag(outputs),
    }
    given = [name for name, value in values.items() if value not in (None, False, ())]
    for name, value in outputs.items().items():
        if name not in _FORMS and value is not None:
            raise _unsupported(outputs.path(name[:64]))
    if len(given) != 1:
        raise invalid("structured_outputs", f"must have exactly one of {', '.join(_FORMS)}")
    return StructuredOutputs(**{given[0]: values[given[0]]})  # type: ignore[arg-type]


def _read_response_format(response_format: Fields) -> StructuredOutputs | None:
    kind = response_format.required_text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True)
    if kind == "structural_tag":
        # The tag is what stands beside the type: a format, or structures and triggers.
        return StructuredOutputs(structural_tag=json.dumps(response_format.items()))
    if kind != "json_schema":
        raise _unsupported(response_format.path("type"), kind[:64])
    wrapped = response_format.object("json_schema")
    if wrapped is None:
        raise invalid(response_format.path("json_schema"), "is required: give name and schema")
    schema = wrapped.get("schema")
    if schema is None:
        raise invalid(wrapped.path("schema"), "is required: give a JSON schema")
    wrapped.text("name")
    # Every answer keeps to its schema, so both values are honoured.
    wrapped.boolean("strict")
    return StructuredOutputs(json_schema=read_schema(schema, wrapped.path("schema")))


def _read_tag(outputs: Fields) -> str | None:
    """Return the structural tag as JSON text; a string is taken for that."""
    tag, path = outputs.get("structural_tag"), outputs.path("structural_tag")
    if isinstance(tag, str):
        return check_text(tag, path)
    if tag is not None and not isinstance(tag, dict):
        raise wrong_type(path, tag, "a structural tag")
    # ASCII, so that a lone surrogate inside stays an escape.
    return None if tag is None else json.dumps(tag)


def read_schema(schema: Any, path: str) -> str:
    """Return the schema as JSON text; a string is taken for that."""
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, dict):
        raise wrong_type(path, schema, "a JSON schema")
    # ASCII, so that a lone surrogate inside stays an escape.
    return json.dumps(schema)


def _unsupported(path: str, value: str = "") -> InvalidRequestError:
    what = f"{value} is not supported" if value else "is not supported"
    return InvalidRequestError(f"{path}: {what}", reason="UNSUPPORTED_PARAMETER", field=path)
