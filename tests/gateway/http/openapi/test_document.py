"""The document is true: what it names is read and accepted, what is answered is in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import jsonschema
import pytest

from gateway.config import AccessConfig, RequestLimits, Timeouts
from gateway.http.chat import read_chat
from gateway.http.completions import read_completion
from gateway.http.fields import Fields
from gateway.http.known_names import HINTS, UNSUPPORTED
from gateway.http.messages.request import read_call, read_count
from gateway.http.openapi.document import document
from gateway.http.responses.request import read_response
from gateway.http.tokenize import read_detokenize, read_tokenize
from pagewire.v1 import scheduler_pb2
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import Gateway, GatewayFactory

SCHEMA: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
MESSAGES = [{"role": "user", "content": "Hi"}]
READERS: dict[str, tuple[Callable[[Fields], Any], list[dict[str, Any]]]] = {
    "/v1/completions": (partial(read_completion, max_prompts=9), [{"prompt": "ab"}]),
    "/v1/chat/completions": (read_chat, [{"messages": MESSAGES}]),
    "/v1/responses": (read_response, [{"input": "ab"}]),
    "/v1/messages": (read_call, [{"messages": MESSAGES, "max_tokens": 3}]),
    "/v1/messages/count_tokens": (read_count, [{"messages": MESSAGES}]),
    "/tokenize": (read_tokenize, [{"messages": MESSAGES}, {"prompt": "ab"}]),
    "/detokenize": (read_detokenize, [{"tokens": [97]}]),
}
OF_MESSAGES = {
    *("container", "context_management", "mcp_servers", "n", "logprobs", "prompt_logprobs"),
    *("truncate_prompt_tokens", "echo", "cache_control", "inference_geo", "speed"),
}
# Read, so that other values than the one that changes nothing can be refused.
REFUSED = {
    "/v1/chat/completions": {"chat_template"},  # allowed by a setting of the tokenizer
    "/v1/responses": {
        *("conversation", "moderation", "n", "prompt", "prompt_logprobs"),
        "truncate_prompt_tokens",
        *("response_format", "stream_options", "context_management", "prompt_cache_options"),
    },
    "/v1/messages": OF_MESSAGES | {"response_format"},
    "/v1/messages/count_tokens": OF_MESSAGES,
    "/tokenize": {"chat_template"},
}
EXAMPLES: dict[str, Any] = {
    "model": MODEL,
    "stop": ["zz"],
    "stop_token_ids": [5],
    "logit_bias": {"97": 1.5},
    "allowed_token_ids": [97, 98],
    "logprob_token_ids": [97],
    "thinking_token_budget": -1,  # others need a parser
    "bad_words": ["no"],
    "structured_outputs": {"regex": "a+"},
    "response_format": {"type": "json_object"},
    "stream_options": {"include_usage": True},
    "truncation_side": "left",
    "seed": 1,
    "tools": [SCHEMA],
    "tool_choice": "none",
    "documents": [{"text": "x"}],
    "chat_template_kwargs": {"x": 1},
    "reasoning_effort": "low",
    "verbosity": "low",
    "metadata": {"k": "v"},
    "truncation": "auto",
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "n": 1,
    "repetition_penalty": 1.1,
    "system": "Be brief.",
}
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "continue_final_message": {"add_generation_prompt": False},
}
WITH_BY_PATH: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/completions", "logprob_token_ids"): {"logprobs": 1},
    ("/v1/chat/completions", "logprob_token_ids"): {"logprobs": True},
}
BY_PATH: dict[tuple[str, str], Any] = {
    ("/v1/responses", "tools"): [{"type": "function", "name": "f"}],
    ("/v1/completions", "logprobs"): 1,
    ("/v1/messages", "tools"): [{"name": "f", "input_schema": {}}],
    ("/v1/messages", "tool_choice"): {"type": "none"},
    ("/v1/messages", "stop_sequences"): ["zz"],
    ("/v1/messages", "thinking"): {"type": "disabled"},
    ("/v1/messages", "output_config"): {"effort": "low"},
    ("/v1/messages", "output_format"): {"type": "json_schema", "schema": {}},
    ("/v1/messages/count_tokens", "tools"): [{"name": "f", "input_schema": {}}],
    ("/v1/messages/count_tokens", "tool_choice"): {"type": "none"},
    ("/v1/messages/count_tokens", "thinking"): {"type": "adaptive"},
    ("/v1/messages/count_tokens", "output_config"): {"effort": "low"},
}


def operation(path: str, method: str = "post") -> Any:
    return document()["paths"][path][method]


def properties(path: str) -> dict[str, Any]:
    body = operation(path)["requestBody"]["content"]["application/json"]["schema"]
    found: dict[str, Any] = body["properties"]
    return found


def example(path: str, name: str) -> Any:
    if (path, name) in BY_PATH:
        return BY_PATH[path, name]
    if name in EXAMPLES:
        return EXAMPLES[name]
    schema = properties(path)[name]
    schema = schema.get("anyOf", [schema])[0]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"string": "x", "boolean": True, "integer": max(1, schema.get("minimum", 1))}
    return kinds.get(schema["type"], 0.5)


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    components = document()["components"]
    return jsonschema.Draft202012Validator({**schema, "components": components})


def check_answer(
    answer: httpx.Response, path: str, method: str = "post", whole: Any = None
) -> None:
    """The status and the shape are documented, in the usual document or the one given."""
    documented = (whole or document())["paths"][path][method]["responses"]
    assert str(answer.status_code) in documented, answer.text
    content = documented[str(answer.status_code)]["content"]
    media_type = answer.headers["content-type"].split(";")[0]
    assert media_type in content
    if media_type == "application/json":
        validator(content[media_type]["schema"]).validate(answer.json())


@pytest.mark.parametrize("path", READERS)
def test_a_body_has_the_names_that_its_reader_asks_for(path: str) -> None:
    read, bodies = READERS[path]
    asked: set[str] = set()
    for body in bodies:
        fields = Fields(body)
        read(fields)
        asked |= fields.asked()
    documented = set(properties(path))
    assert documented <= asked
    assert asked - documented <= REFUSED.get(path, set()) | set(UNSUPPORTED) | set(HINTS)


@pytest.mark.parametrize("path", READERS)
async def test_each_documented_field_is_accepted_and_its_answer_is_documented(
    gateway: Gateway, path: str
) -> None:
    for name in properties(path):
        if name == "previous_response_id":  # goes with a response that exists
            continue
        others = WITH.get(name, {}) | WITH_BY_PATH.get((path, name), {})
        body = {**READERS[path][1][-1 if name == "prompt" else 0], **others}
        body[name] = body.get(name) or example(path, name)
        if path == "/tokenize" and name == "prompt":
            body.pop("messages", None)
        if path not in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
            limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            body = {limit: 3} | body
        answer = await gateway.http.post(path, json=body)
        assert answer.status_code == 200, (name, answer.text)
        check_answer(answer, path)


async def test_each_path_of_the_document_is_there_and_no_other(gateway: Gateway) -> None:
    served = (await gateway.http.get("/openapi.json")).json()
    assert served == json.loads(json.dumps(document()))
    for path, methods in served["paths"].items():
        for method in {"get", "post", "delete"} & set(methods):
            url = path.replace("{model}", MODEL).replace("{response_id}", "resp_x")
            answer = await gateway.http.request(method, url)
            assert answer.status_code != 405
            check_answer(answer, path, method)
        refused = await gateway.http.request("PATCH", path)
        assert refused.status_code == 405


def test_the_schemas_are_schemas() -> None:
    for schema in document()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path in READERS:
        body = operation(path)["requestBody"]["content"]["application/json"]["schema"]
        for each in READERS[path][1]:
            validator(body).validate(each)


async def half_a_body(gateway: Gateway, path: str) -> int:
    """Send the beginning of a body, and return the status that comes."""
    url = httpx.URL(gateway.base_url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{"
    writer.write(head.encode())
    status = (await reader.readline()).split()[1]
    writer.close()
    return int(status)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
)
async def test_each_documented_status_is_seen(run_gateway: GatewayFactory, path: str) -> None:
    body = READERS[path][1][0]
    seen: set[int] = set()

    def note(answer: httpx.Response) -> None:
        check_answer(answer, path)
        seen.add(answer.status_code)

    timeouts = Timeouts(body_timeout_s=0.2, request_timeout_s=5.0)
    async with run_gateway(limits=RequestLimits(max_body_bytes=500), timeouts=timeouts) as gateway:
        note(await gateway.http.post(path, json=body))
        note(await gateway.http.post(path, json={}))
        note(await gateway.http.post(path, json=body | {"model": "none"}))
        note(await gateway.http.post(path, json=body | {"user": "x" * 600}))
        seen.add(await half_a_body(gateway, path))
        full = {"code": 8, "reason": "QUEUE_FULL", "message": "the queue is full"}
        gateway.scheduler.refusal = scheduler_pb2.RequestError(**full)
        note(await gateway.http.post(path, json=body))
    async with run_gateway(timeouts=replace(timeouts, request_timeout_s=0.2)) as gateway:
        gateway.scheduler.go_on.clear()
        note(await gateway.http.post(path, json=body))
    async with run_gateway(tokenizers=("127.0.0.1:1",), wait=False) as gateway:
        note(await gateway.http.post(path, json=body))
    keys = AccessConfig(api_key=("secret-key",))
    async with run_gateway(access=keys) as gateway:
        note(await gateway.http.post(path, json=body))
    assert {str(status) for status in seen} == set(operation(path)["responses"])
