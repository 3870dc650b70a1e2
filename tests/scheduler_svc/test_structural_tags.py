"""Text in which some parts have forms: free outside, held to the schema within."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar, GrammarError
from scheduler_svc.grammar_backend import GrammarBackend
from tests.scheduler_svc.vocabularies import EOS, allowed, make_backend

STRUCTURES = [
    {
        "begin": '<call>{"name": "f", "arguments": ',
        "schema": {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1]}}},
        "end": "}</call>",
    },
    {"begin": "<call>g", "schema": {"type": "array", "items": {"type": "null"}}, "end": ""},
    {"begin": "[b]", "schema": {"type": "boolean"}, "end": "[/b]"},
]
TAG = {"type": "structural_tag", "structures": STRUCTURES, "triggers": ["<call>", "[b]", "unused"]}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return make_backend(cache_size=16)


def make_grammar(backend: GrammarBackend, tag: Any = TAG, **more: str) -> Grammar:
    return backend.compile(StructuredOutputs(structural_tag=json.dumps(tag), **more))


def takes(grammar: Grammar, text: str) -> bool:
    return all(byte in allowed(grammar) and grammar.accept(byte) for byte in text.encode())


GOOD = [
    "Just text < [b no { call",
    'Look: <call>{"name": "f", "arguments": {"a": 1}}</call>\n<call>g[null, null] done',
    "[b]true[/b][b]false[/b]<call>g[]",
    "é\n\n",
]
BAD = [
    '<call>{"name": "f", "arguments": {"a": 2',
    '<call>{"name": "h',
    "<call>g[1",
    "text [b]n",
    "text [b]true ",
]


@pytest.mark.parametrize("text", GOOD)
def test_text_is_free_and_structures_are_whole(backend: GrammarBackend, text: str) -> None:
    grammar = make_grammar(backend)
    assert takes(grammar, text)
    assert EOS in allowed(grammar)


@pytest.mark.parametrize("text", BAD)
def test_behind_a_trigger_only_a_structure_is_allowed(backend: GrammarBackend, text: str) -> None:
    assert takes(make_grammar(backend), text[:-1])
    assert not takes(make_grammar(backend), text)


def test_an_output_does_not_end_within_a_structure(backend: GrammarBackend) -> None:
    grammar = make_grammar(backend)
    assert takes(grammar, "text [b]true[/b")
    assert EOS not in allowed(grammar)


def test_structures_stand_behind_the_reasoning(backend: GrammarBackend) -> None:
    grammar = make_grammar(backend, reasoning_end="</think>")
    assert takes(grammar, "I may [b] or not</think>[b]true[/b] Yes")
    assert not takes(make_grammar(backend, reasoning_end="</think>"), "</think>[b]maybe")


@pytest.mark.parametrize(
    "tag",
    [
        [],
        {"structures": STRUCTURES},
        {"structures": [], "triggers": ["<"]},
        {"structures": STRUCTURES, "triggers": []},
        {"structures": STRUCTURES, "triggers": ["<call>"]},
        {"structures": STRUCTURES, "triggers": ["", "[b]"]},
        {"structures": STRUCTURES * 100, "triggers": TAG["triggers"]},
        {"structures": [1], "triggers": ["<"]},
        {"structures": [{"begin": "<a>", "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<a>", "schema": {}}], "triggers": ["<"]},
        {"structures": [{"begin": "<a>" * 999, "schema": {}, "end": ""}], "triggers": ["<"]},
        {"structures": [{"begin": "<", "schema": {"type": "x"}, "end": ""}], "triggers": ["<"]},
    ],
)
def test_a_bad_tag_is_told(backend: GrammarBackend, tag: Any) -> None:
    with pytest.raises(GrammarError, match="structural_tag: "):
        make_grammar(backend, tag)


def test_text_that_is_no_json_is_told(backend: GrammarBackend) -> None:
    with pytest.raises(GrammarError, match="structural_tag: is not valid JSON"):
        backend.compile(StructuredOutputs(structural_tag="{"))
