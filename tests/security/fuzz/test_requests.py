"""Damaged requests and outputs: bodies, templates, grammars, calls of tools, heads of HTTP.

`FUZZ_ROUNDS` makes it longer and `FUZZ_SEED` another one: `make fuzz`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from gateway.http.chat import read_chat
from gateway.http.completions import read_completion
from gateway.http.fields import Fields
from gateway.http.json_body import parse_json_object
from gateway.http.responses.request import read_response
from gateway.http.tokenize import read_tokenize
from gateway.tools.registry import TOOL_FORMATS
from pagewire.kit.errors import InvalidRequestError, PagewireError
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import GrammarError
from tests.gateway.tools.transcripts import TRANSCRIPTS, parser_of, read
from tests.scheduler_svc.vocabularies import make_backend
from tests.security.fuzz.mutations import damaged_json, damaged_text, hostile_json
from tests.security.fuzz.test_rpc import INTERNALS, answers
from tests.security.services import Services
from tokenizer_svc.chat_template import DEFAULT_TEMPLATE, ChatRequest, ChatTemplates

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "20261130"))
NUM_TRIES = 200 * ROUNDS
pytestmark = pytest.mark.timeout(1200 + 600 * ROUNDS)
HEAD_TIMEOUT_S = 60.0

SHARED = {
    "model": "m", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["a"],
    "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1.0},
    "seed": 4, "presence_penalty": 0.1, "min_tokens": 1, "bad_words": ["b"], "user": "u",
    "stop_token_ids": [3], "allowed_token_ids": [1, 2],
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: dict[str, tuple[Callable[[Fields], Any], dict[str, Any]]] = {
    "completion": (
        lambda fields: read_completion(fields, 8),
        {**SHARED, "prompt": ["a", "b"], "logprobs": 2, "echo": True, "suffix": None},
    ),
    "chat": (
        read_chat,
        {
            **SHARED,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "x"}]},
                {"role": "user", "content": "y", "name": "n"},
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a": 1}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "z"},
            ],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "logprobs": True,
            "top_logprobs": 2,
            "response_format": {"type": "text"},
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "response": (
        read_response,
        {
            "model": "m",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            "instructions": "i",
            "max_output_tokens": 4,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "text": {"format": {"type": "json_object"}},
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
        },
    ),
    "tokenize": (read_tokenize, {"model": "m", "prompt": "a", "add_special_tokens": True}),
}
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m['content'] | trim }}"
    "{% if loop.last %}{{ eos }}{% endif %}{% endfor %}{% set ns = namespace(a=1) %}{{ ns.a }}"
)
TEMPLATE_PIECES = (
    "{{", "}}", "{%", "%}", "{#", "''.__class__", ".__mro__", "[0]", "|attr('x')", "* 10**9",
    "** 99999", "range(10**9)", "{% for a in range(10**9) %}", "{% endfor %}", "{% include 'x' %}",
    "{% import 'os' as os %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "cycler",
    "lipsum(n=10**6)", "{{ self }}", "|join", "|format(1)", "%1000000000s", "loop", "{{ 1/0 }}",
    "|map('upper')", "|tojson", "joiner()", "\x00", "é", "(" * 200, "{{ [" * 100,
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^[a-z]{1,4}$"},
        "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 3},
        "d": {"anyOf": [{"enum": ["x", 1]}, {"const": None}]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"c": {"type": "integer", "minimum": 0, "maximum": 10}},
}
REGEX_PIECES = (
    "(", ")", "[", "]", "{1,9}", "{99999}", "*", "+", "?", "|", "\\", "\\p{L}", "\\d", ".", "^",
    "$", "(?=a)", "(?P<n>", "\\1", "(a*)*", "[^\\s]", "{,", "\x00", "é", "(((((((",
)  # fmt: skip
GRAMMAR = 'start: "a" b*\nb: /[0-9]+/ | "(" start ")"\n'
GRAMMAR_PIECES = (
    "start", "::=", "|", '"', "[", "]", "(", ")", "*", "+", "\n", "start:", "/a/", "%import", "é",
    "start: start", "{100000}", "~1..9", "\\", "//", "x: x x\n", "%json {", "A: /a*/",
)  # fmt: skip


def generator_of(name: str) -> random.Random:
    return random.Random(SEED ^ zlib.crc32(name.encode()))


@pytest.mark.parametrize("kind", BODIES)
def test_bodies(kind: str) -> None:
    parse, body = BODIES[kind]
    generator = generator_of(kind)
    assert parse(Fields(parse_json_object(json.dumps(body).encode())))
    damaged = [damaged_json(body, generator) for _ in range(4 * NUM_TRIES)]
    num_refused = 0
    for each in [*hostile_json(), *damaged]:
        try:
            parse(Fields(parse_json_object(each)))
        except PagewireError as error:
            assert error.code.name in ("INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"), each
            assert not INTERNALS.search(error.message), error.message
            num_refused += 1
    assert 0 < num_refused < len(damaged)


def test_templates() -> None:
    generator = generator_of("templates")
    messages = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]
    request = ChatRequest(messages)
    num_rendered = 0
    for _ in range(NUM_TRIES):
        template = damaged_text(TEMPLATE, TEMPLATE_PIECES, generator)
        templates = ChatTemplates({DEFAULT_TEMPLATE: template}, {"eos": "</s>"})
        try:
            text = templates.render(request, 10_000)
        except InvalidRequestError as error:
            assert not INTERNALS.search(error.message), error.message
        else:
            num_rendered += 1
            assert "site-packages" not in text and len(text) <= 10_000
    assert 0 < num_rendered < NUM_TRIES


@pytest.mark.parametrize(
    "template",
    [
        "{{ " + "(" * 5000, "{{ " + "[" * 5000 + "]" * 5000 + " }}", "{{ " + "9" * 5000 + " }}",
        "{% for a in b %}" * 60 + "{% endfor %}" * 60, "{{ a" + ".b" * 5000 + " }}",
        "{% if a %}" * 3000, "{{ -" + "-" * 5000 + "1 }}",
    ],
    ids=range(7),
)  # fmt: skip
def test_templates_that_no_compiler_stands(template: str) -> None:
    templates = ChatTemplates({DEFAULT_TEMPLATE: template}, {})
    with pytest.raises(InvalidRequestError):
        templates.render(ChatRequest([{"role": "user", "content": "a"}]), 10_000)


def form(kind: str, generator: random.Random) -> StructuredOutputs:
    """A damaged form of output."""
    if kind == "json":
        schema = damaged_json(SCHEMA, generator).decode("utf-8", "replace")
        return StructuredOutputs(json_schema=schema)
    if kind == "regex":
        return StructuredOutputs(regex=damaged_text("[a-z]+(x|y){2}", REGEX_PIECES, generator))
    if kind == "grammar":
        return StructuredOutputs(grammar=damaged_text(GRAMMAR, GRAMMAR_PIECES, generator))
    return StructuredOutputs(choice=(damaged_text("abc", REGEX_PIECES, generator), "b"))


@pytest.mark.parametrize("kind", ["json", "regex", "grammar", "choice"])
def test_grammars(kind: str) -> None:
    generator, backend = generator_of(kind), make_backend()
    num_compiled = 0
    for _ in range(NUM_TRIES // 2):
        try:
            backend.compile(form(kind, generator)).masks(())
            num_compiled += 1
        except (GrammarError, InvalidRequestError) as error:
            assert not INTERNALS.search(str(error)), error
    assert num_compiled > 0


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_calls_of_tools(name: str) -> None:
    generator = generator_of(name)
    texts = [case.text for case in TRANSCRIPTS if case.parser == name] or ['{"name": "f"}']
    pieces = (
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\u",
        "</tool_call>",
        "<tool_call>",
        "é",
        "(" * 500,
        "1e999",
    )
    for _ in range(NUM_TRIES):
        text = damaged_text(generator.choice(texts), pieces, generator)
        whole = read(parser_of(name), [text])
        assert read(parser_of(name), text) == whole, text


def heads(generator: random.Random) -> list[bytes]:
    """What a server of HTTP must stand."""
    good = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    fixed = [
        b"", b"\r\n" * 50, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x00\xff" * 20,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", good.replace(b": 2", b": 99999999999999"),
        good.replace(b": 2", b": -1"), good.replace(b": 2", b": 2\r\ncontent-length: 3"),
        good.replace(b"content-length: 2", b"transfer-encoding: chunked") + b"\r\nffffffffff\r\n",
        good.replace(b"content-length: 2", b"content-length: 2\r\ntransfer-encoding: chunked"),
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nhost: x\r\n\r\n",
    ]  # fmt: skip
    cut = [good[: generator.randrange(len(good))] for _ in range(10 * ROUNDS)]
    changed = []
    for _ in range(40 * ROUNDS):
        head = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            head[generator.randrange(len(head))] = generator.randrange(256)
        changed.append(bytes(head))
    return [*fixed, *cut, *changed]


async def test_heads_of_http(services: Services) -> None:
    before = await answers(services)
    trusted = ssl.create_default_context(cafile=str(services.authority.file))

    async def answer_to(head: bytes) -> bytes:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                "localhost", services.http_port, ssl=trusted
            )
            writer.write(head)
            try:
                # What is not whole is waited for: as much comes as is said without it.
                async with asyncio.timeout(0.2):
                    return await reader.read(65536)
            except (TimeoutError, ConnectionError):
                return b""
            finally:
                writer.transport.abort()

    for head in heads(generator_of("heads")):
        answer = (await answer_to(head)).decode("latin-1")
        assert answer == "" or answer.startswith("HTTP/1."), answer
        assert not answer.startswith("HTTP/1.1 5"), (head, answer)
        assert not INTERNALS.search(answer.replace("text/css", "")), answer
    assert await answers(services) == before
    assert '"level": "error"' not in services.log("gateway")
