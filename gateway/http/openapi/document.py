"""The document: paths, what they take, and the statuses that they answer with."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gateway.http.json_response import to_json
from gateway.http.openapi import answers, messages, requests
from gateway.http.openapi import map as map_schemas
from gateway.http.openapi import traces as trace_schemas
from gateway.http.openapi.schemas import TEXT, Schema, integer, ref, words
from pagewire import __version__

_STATUSES = {
    400: "What was asked for cannot be done; `param` names the field.",
    401: "A key is needed, and none or a wrong one came.",
    404: "There is no such model or response, or no trace of such a request.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests wait or run; `retry-after` says when to try again.",
    503: "Not ready: no engine or tokenizer is connected, or the server drains.",
    504: "The time for the request is over.",
}
_GENERATES = (400, 401, 404, 408, 413, 429, 503, 504)
_COUNTS = (400, 401, 404, 408, 413, 429, 503, 504)
_ID_PARAMETER = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
}
_PAGE_PARAMETERS = [
    {"name": name, "in": "query", "required": False, "schema": schema}
    for name, schema in {
        "limit": integer(1, 100),
        "order": words("asc", "desc"),
        "after": TEXT,
    }.items()
]
_MODEL_PARAMETER = {**_ID_PARAMETER, "name": "model"}


TOKENIZER_INFO = "/tokenizer_info"


@lru_cache(maxsize=2)
def openapi_json(tokenizer_info: bool = False) -> bytes:
    """Return the document as JSON; see `document`."""
    return to_json(document(tokenizer_info))


def document(tokenizer_info: bool = False) -> dict[str, Any]:
    """Return the document.

    Args:
        tokenizer_info: Whether `TOKENIZER_INFO` is served.
    """
    more: dict[str, Any] = {}
    if tokenizer_info:
        summary = "Show the tokenizer's configuration"
        more[TOKENIZER_INFO] = {"get": _operation(summary, "TokenizerInfo", (401, 503))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pagewire", "version": __version__},
        "paths": _paths() | more,
        "components": {
            "schemas": requests.PARTS
            | messages.PARTS
            | answers.SCHEMAS
            | messages.ANSWERS
            | map_schemas.SCHEMAS
            | trace_schemas.SCHEMAS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _paths() -> dict[str, Any]:
    return {
        "/v1/completions": {
            "post": _post("Continue prompts", requests.COMPLETION, "Completion", streams=True)
        },
        "/v1/chat/completions": {
            "post": _post("Answer a conversation", requests.CHAT, "ChatCompletion", streams=True)
        },
        "/v1/responses": {
            "post": _post("Create a response", requests.RESPONSE, "Response", streams=True)
        },
        "/v1/responses/{response_id}": {
            "get": _operation("Read a kept response", "Response", (400, 401, 404))
            | {"parameters": [_ID_PARAMETER]},
            "delete": _operation("Forget a kept response", "DeletedResponse", (401, 404))
            | {"parameters": [_ID_PARAMETER]},
        },
        "/v1/responses/{response_id}/input_items": {
            "get": _operation("List the input of a kept response", "ResponseItems", (400, 401, 404))
            | {"parameters": [_ID_PARAMETER, *_PAGE_PARAMETERS]},
        },
        "/v1/responses/{response_id}/cancel": {
            "post": _operation(
                "Refused: responses do not run in the background", "", (400, 401, 404)
            )
            | {"parameters": [_ID_PARAMETER]},
        },
        "/v1/messages": {
            "post": _post(
                "Answer a conversation, as Anthropic's API does",
                messages.MESSAGES,
                "MessagesMessage",
                streams=True,
                error="MessagesError",
            )
        },
        "/v1/messages/count_tokens": {
            "post": _post(
                "Count the tokens of a conversation",
                messages.COUNT_TOKENS,
                "MessagesCount",
                error="MessagesError",
            )
        },
        "/v1/map": {"get": _operation("Show the boxes and what limits them", "Map", (401,))},
        "/v1/requests": {
            "get": _operation("List kept traces of requests", "RequestTraces", (400, 401, 404))
            | {"parameters": [trace_schemas.LIMIT_PARAMETER]}
        },
        "/v1/requests/{request_id}/trace": {
            "get": _operation("Show where a request's time went", "RequestTrace", (401, 404))
            | {"parameters": [trace_schemas.ID_PARAMETER]}
        },
        "/v1/models": {"get": _operation("List the models", "Models", (401,))},
        "/v1/models/{model}": {
            "get": _operation("Show a model", "Model", (401, 404))
            | {"parameters": [_MODEL_PARAMETER]}
        },
        "/tokenize": {"post": _post("Text to token ids", requests.TOKENIZE, "Tokens")},
        "/detokenize": {
            "post": _post("Token ids to text", requests.DETOKENIZE, "DetokenizedPrompt")
        },
        "/health": {"get": _operation("Tell whether requests can be answered", "Health", (503,))},
        "/ping": {
            method: _operation("The same as /health", "Health", (503,))
            for method in ("get", "post")
        },
        "/load": {"get": _operation("Count the requests in work", "Load", (401,))},
        "/version": {"get": _operation("Tell the version", "Version", (401,))},
        "/metrics": {"get": _plain("Prometheus metrics", "text/plain", (401,))},
        "/openapi.json": {"get": _plain("This document", "application/json", (401,))},
    }


def _post(
    summary: str, body: Schema, answer: str, streams: bool = False, error: str = "Error"
) -> dict[str, Any]:
    operation = _operation(summary, answer, _GENERATES if streams else _COUNTS, error)
    content: dict[str, Any] = {"application/json": {"schema": body}}
    if streams:
        events = {"schema": {"type": "string"}}
        operation["responses"]["200"]["content"]["text/event-stream"] = events
    return operation | {"requestBody": {"required": True, "content": content}}


def _operation(
    summary: str, answer: str, errors: tuple[int, ...], error: str = "Error"
) -> dict[str, Any]:
    """Return an operation; an empty `answer`: it never succeeds."""
    responses: dict[str, Any] = {}
    if answer:
        content = {"application/json": {"schema": ref(answer)}}
        responses["200"] = {"description": "Done", "content": content}
    for status in errors:
        content = {"application/json": {"schema": ref(error)}}
        responses[str(status)] = {"description": _STATUSES[status], "content": content}
    return {"summary": summary, "responses": responses}


def _plain(summary: str, media_type: str, errors: tuple[int, ...]) -> dict[str, Any]:
    operation = _operation(summary, "", errors)
    content: dict[str, Any] = {media_type: {"schema": {}}}
    done = {"200": {"description": "Done", "content": content}}
    return operation | {"responses": done | operation["responses"]}
