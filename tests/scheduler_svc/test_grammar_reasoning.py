"""Forms that begin behind the reasoning: anything goes up to its end, only the form after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar
from scheduler_svc.grammar_backend import GrammarBackend
from tests.scheduler_svc.vocabularies import EOS, IM_END, allowed, make_backend

ANSWER = '{"a": 1}'
FORMS = {
    "json_schema": StructuredOutputs(
        json_schema='{"properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    ),
    "json_object": StructuredOutputs(json_object=True),
    "regex": StructuredOutputs(regex=r'\{"a": \d\}'),
    "choice": StructuredOutputs(choice=(ANSWER, "no")),
    "grammar": StructuredOutputs(grammar='start: "{" KEY ": 1}"\nKEY: "\\"a\\""'),
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return make_backend(cache_size=16)


def make_grammar(backend: GrammarBackend, form: str, start: str = "") -> Grammar:
    outputs = replace(FORMS[form], reasoning_end="</think>", reasoning_start=start)
    return backend.compile(outputs)


def takes(grammar: Grammar, text: str) -> bool:
    """Whether each byte is allowed where it stands."""
    return all(byte in allowed(grammar) and grammar.accept(byte) for byte in text.encode())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gap", ["", "\n\n"])
def test_the_form_begins_behind_the_reasoning(backend: GrammarBackend, form: str, gap: str) -> None:
    grammar = make_grammar(backend, form)
    assert takes(grammar, 'Hm, {"b": <b>\n</think')
    assert allowed(grammar).isdisjoint({EOS, IM_END})
    assert takes(grammar, f">{gap}{ANSWER}")
    assert grammar.is_complete or EOS in allowed(grammar)


@pytest.mark.parametrize("form", FORMS)
def test_behind_it_nothing_else_is_allowed(backend: GrammarBackend, form: str) -> None:
    grammar = make_grammar(backend, form)
    assert takes(grammar, "</think>")
    assert ord("x") not in allowed(grammar)


@pytest.mark.parametrize("form", FORMS)
def test_an_output_that_may_reason_does_or_has_the_form_at_once(
    backend: GrammarBackend, form: str
) -> None:
    assert takes(make_grammar(backend, form, "<think>"), ANSWER)
    assert takes(make_grammar(backend, form, "<think>"), f"\n<think>Hm.</think>{ANSWER}")
    assert not takes(make_grammar(backend, form, "<think>"), "Hm.")


def test_what_is_forced_is_drafted_behind_the_reasoning_only(backend: GrammarBackend) -> None:
    grammar = make_grammar(backend, "json_schema")
    assert grammar.forced_tokens(8) == []
    assert takes(grammar, 'Hm.</think>{"')
    assert grammar.forced_tokens(8)
