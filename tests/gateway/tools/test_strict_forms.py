"""Forms of calls against the engine's grammars and the parsers: what may be written, and is read.

The scheduler compiles the form, so that no output of it is a call that breaks its schema.
"""

from __future__ import annotations

import json

import pytest

from gateway.message_events import CallArguments, CallStart, Content
from gateway.tools.registry import TOOL_FORMATS
from gateway.tools.tool import Tool
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar
from scheduler_svc.grammar_backend import GrammarBackend
from tests.scheduler_svc.vocabularies import EOS, allowed, make_backend

F = Tool("f", {"type": "object", "properties": {"a": {"enum": [1]}}}, strict=True)
G = Tool("g.h", {"type": "object", "properties": {}})
LLAMA_F, LLAMA_G = (
    '{"name": "f", "parameters": {"a": 1}}',
    '{"name": "g.h", "parameters": {"x": []}}',
)
JSON_F, JSON_G = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g.h", "arguments": {}}'

CALLS = {
    "hermes": [
        f"Well: <tool_call>\n{JSON_F}\n</tool_call> and <tool_call>\n{JSON_G}\n</tool_call>"
    ],
    "llama3_json": [LLAMA_F, f"{LLAMA_F}; {LLAMA_G}", f"So: <|python_tag|>{LLAMA_G}; {LLAMA_F}"],
    "json": [JSON_F, f"{JSON_F}; {JSON_G}", f"[{JSON_F}, {JSON_G}]"],
}
TEXTS = {
    "hermes": ["A < b", '{"name": "f", "arguments": {"a": 2}}'],
    "llama3_json": ["<b>x</b>", 'Look: {"name": "f", "parameters": {"a": 2}}'],
    "json": ["[x](y)", "```python\nf()\n```", "`f`", 'Look: {"name": "f", "arguments": {"a": 2}}'],
}
BROKEN = {
    "hermes": ['<tool_call>{"name": "f"', '<tool_call>\n{"name": "i'],
    "llama3_json": [
        '{"name": "f", "parameters": {"a": 2',
        f"{LLAMA_F}\n",
        ' {"name": "f"',
        '<|python_tag|>{"name": "f"',
        'So <|python_tag|> {"name": "f"',
        f"So <|python_tag|>{LLAMA_F} {{",
    ],
    "json": [
        '{"name": "f", "arguments": {"a": 2',
        f"{JSON_F} {{",
        '```json\n{"name"',
        f"[{JSON_F}] [",
    ],
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return make_backend(cache_size=8)


def make_grammar(backend: GrammarBackend, name: str) -> Grammar:
    form = TOOL_FORMATS[name].form
    assert form is not None
    return backend.compile(StructuredOutputs(structural_tag=json.dumps(form([F, G]))))


def takes(grammar: Grammar, text: str) -> bool:
    return all(byte in allowed(grammar) and grammar.accept(byte) for byte in text.encode())


def parse(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the content, and names with their arguments."""
    parser = TOOL_FORMATS[name].make_parser([F.name, G.name])
    content, calls = "", list[tuple[str, str]]()
    for event in (*parser.push(text), *parser.finish()):
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return content, calls


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in CALLS for text in CALLS[n]])
def test_calls_that_keep_to_their_schemas_can_be_written_and_are_read(
    backend: GrammarBackend, name: str, text: str
) -> None:
    grammar = make_grammar(backend, name)
    assert takes(grammar, text)
    assert EOS in allowed(grammar)
    _, calls = parse(name, text)
    assert len(calls) == text.count('"name"')
    assert all(json.loads(arguments) == {"a": 1} for called, arguments in calls if called == "f")


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in TEXTS for text in TEXTS[n]])
def test_text_stays_free_where_it_is_read_as_text(
    backend: GrammarBackend, name: str, text: str
) -> None:
    grammar = make_grammar(backend, name)
    assert takes(grammar, text)
    assert EOS in allowed(grammar)
    assert parse(name, text) == (text, [])


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in BROKEN for text in BROKEN[n]])
def test_what_could_become_another_call_cannot_be_written(
    backend: GrammarBackend, name: str, text: str
) -> None:
    assert not takes(make_grammar(backend, name), text)
