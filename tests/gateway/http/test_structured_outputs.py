"""The form of an output: from either field of an endpoint to the engine, and refusals back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pagewire.sampling_params import StructuredOutputs
from pagewire.v1 import scheduler_pb2
from pagewire.wire import structured_outputs_from_proto
from tests.gateway.conftest import Gateway

COMPLETIONS = ("/v1/completions", {"prompt": "abc", "max_tokens": 2})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
AS_TEXT = StructuredOutputs(json_schema=json.dumps(SCHEMA))
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "é"}}
TAG_AS_TEXT = StructuredOutputs(structural_tag=json.dumps(TAG))
STRUCTURES = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}

GOOD: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"structured_outputs": {"json": SCHEMA}}, AS_TEXT),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, AS_TEXT),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
    ({"structured_outputs": {"regex": "a+"}}, StructuredOutputs(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs(choice=("a", "b"))),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputs(grammar='start: "a"')),
    (
        {"structured_outputs": {"regex": "a", "json": None, "json_object": False}},
        StructuredOutputs(regex="a"),
    ),
    ({"structured_outputs": {"structural_tag": TAG}}, TAG_AS_TEXT),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, TAG_AS_TEXT),
    ({"response_format": TAG}, TAG_AS_TEXT),
    (
        {"response_format": STRUCTURES},
        StructuredOutputs(structural_tag=json.dumps(STRUCTURES)),
    ),
    ({"structured_outputs": None, "response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
            }
        },
        AS_TEXT,
    ),
    (
        {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
        StructuredOutputs(regex="a"),
    ),
]

BAD: list[tuple[str, dict[str, Any]]] = [
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"json_object": False}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    ("structured_outputs", {"structured_outputs": {"json": SCHEMA, "json_object": True}}),
    ("structured_outputs", {"structured_outputs": "json"}),
    ("structured_outputs", {"structured_outputs": {"regex": ""}}),
    ("structured_outputs", {"structured_outputs": {"choice": ["a", ""]}}),
    ("structured_outputs.json", {"structured_outputs": {"json": [1]}}),
    ("structured_outputs.json", {"structured_outputs": {"json": True}}),
    ("structured_outputs.json_object", {"structured_outputs": {"json_object": 1}}),
    ("structured_outputs.regex", {"structured_outputs": {"regex": 1}}),
    ("structured_outputs.choice", {"structured_outputs": {"choice": "a"}}),
    ("structured_outputs.choice[1]", {"structured_outputs": {"choice": ["a", 1]}}),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": ["a"]}}),
    ("structured_outputs.structural_tag", {"structured_outputs": {"structural_tag": [1]}}),
    ("structured_outputs", {"structured_outputs": {"structural_tag": TAG, "regex": "a"}}),
    (
        "structured_outputs.whitespace_pattern",
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " *"}},
    ),
    ("response_format", {"response_format": "json_object"}),
    ("response_format.type", {"response_format": {}}),
    ("response_format.type", {"response_format": {"type": "grammar"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
    ),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}},
    ),
    (
        "response_format",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    ("guided_json", {"guided_json": SCHEMA}),
]


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
async def test_every_form_reaches_the_engine_as_it_was_asked_for(
    gateway: Gateway, endpoint: tuple[str, dict[str, Any]]
) -> None:
    path, body = endpoint
    for fields, wanted in GOOD:
        gateway.scheduler.adds.clear()
        answer = await gateway.http.post(path, json=body | fields)
        assert answer.status_code == 200, answer.text
        params = gateway.scheduler.adds[0].sampling_params
        if wanted is None:
            assert not params.HasField("structured_outputs")
        else:
            assert structured_outputs_from_proto(params.structured_outputs) == wanted


@pytest.mark.parametrize("endpoint", [COMPLETIONS, CHAT])
async def test_a_form_of_the_wrong_shape_is_400_and_named(
    gateway: Gateway, endpoint: tuple[str, dict[str, Any]]
) -> None:
    path, body = endpoint
    for param, fields in BAD:
        answer = await gateway.http.post(path, json=body | fields)
        assert answer.status_code == 400, (fields, answer.text)
        assert answer.json()["error"]["param"] == param, fields
    assert gateway.scheduler.adds == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_form_that_the_engine_refuses_is_400_streamed_or_not(
    gateway: Gateway, stream: bool
) -> None:
    gateway.scheduler.refusal = scheduler_pb2.RequestError(
        code=3,
        reason="INVALID_GRAMMAR",
        message='json_schema: Unimplemented keys: ["not"]',
        field="structured_outputs",
    )
    path, body = CHAT
    fields = {"stream": stream, "structured_outputs": {"json": {"not": {}}}}
    answer = await gateway.http.post(path, json=body | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (400, "structured_outputs")
    assert error["message"] == 'json_schema: Unimplemented keys: ["not"]'


async def test_a_streams_status_waits_until_the_engine_has_taken_the_request(
    gateway: Gateway,
) -> None:
    """The engine admits a request once its grammar is compiled, however long that takes."""
    gateway.scheduler.ignores_adds = True
    path, body = COMPLETIONS
    fields = {"stream": True, "structured_outputs": {"json_object": True}}
    begun = []

    async def post() -> None:
        async with gateway.http.stream("POST", path, json=body | fields) as answer:
            begun.append(answer.status_code)

    request = asyncio.create_task(post())
    await gateway.scheduler.until(lambda: gateway.scheduler.adds)
    # Another request goes all the way meanwhile, so the first one's status had its time.
    gateway.scheduler.ignores_adds = False
    assert (await gateway.http.post(path, json=body)).status_code == 200
    assert begun == []
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
