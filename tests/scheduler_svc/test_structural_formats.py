"""Trees of formats: what each takes, where an output may end, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar, GrammarError
from scheduler_svc.grammar_backend import GrammarBackend
from scheduler_svc.structural_formats import MAX_FORMATS
from tests.scheduler_svc.vocabularies import EOS, allowed, make_backend

ANY = {"type": "any_text"}
ONE = {"type": "json_schema", "json_schema": {"enum": [1]}}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> dict[str, Any]:
    return {"type": "regex", "pattern": pattern}


def tag(begin: str, content: Any, end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": elements}


def triggered(*tags: Any, **more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": tags, **more}


def separated(*tags: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": tags, "separator": ", ", **more}


F, G = tag("<f>", ONE, "</f>"), tag("<f2>", regex("[a-z]+"), "end")
BARE = tag("<f>", ONE, "")


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return make_backend(cache_size=16)


def make_grammar(backend: GrammarBackend, form: Any, **more: Any) -> Grammar:
    text = json.dumps({"type": "structural_tag", "format": form, **more})
    return backend.compile(StructuredOutputs(structural_tag=text))


def takes(grammar: Grammar, text: str) -> bool:
    return all(byte in allowed(grammar) and grammar.accept(byte) for byte in text.encode())


WHOLE: list[tuple[Any, list[str], list[str]]] = [
    (const("hello"), ["hello"], ["", "hell", "hello!"]),
    (ONE, ["1"], ["2"]),
    (regex("a|b{2}"), ["a", "bb"], ["b", "ab"]),
    (ANY, ["", "anything\n<f>"], []),
    (sequence(const("a"), ONE, ANY), ["a1", "a1 and more"], ["a", "1"]),
    (either(const("a"), sequence(ONE, const("b"))), ["a", "1b"], ["ab", "1"]),
    # The end of a tag can be a part of what its expression takes.
    (tag("<", regex("[a-z]+"), "end"), ["<xend", "<xendend"], ["<x", "<end"]),
    (tag("<t>", ANY, "</t>"), ["<t>a<b</</t>"], ["<t>", "<t></t>x"]),
    (tag("", const("a"), ""), ["a"], ["b"]),
    (tag("(", tag("[", ANY, ""), ")"), ["([x] y)"], ["([x]"]),
    (triggered(F, G), ["", "< f", "a<f>1</f>b<f2>xyend", "<f>1</f>"], ["<f>1", "<f>2</f>", "<f3"]),
    (triggered(F, at_least_one=True), ["<f>1</f>", "<f>1</f> a<f>1</f>"], ["", "a<f>1</f>"]),
    (triggered(F, stop_after_first=True), ["a", "a<f>1</f>"], ["<f>1</f>a", "<f"]),
    (triggered(F, at_least_one=True, stop_after_first=True), ["<f>1</f>"], ["", "<f>1</f><f>"]),
    (triggered(BARE), ["a<f>1 b"], ["<f>"]),
    (tag("(", triggered(F), ")"), ["(a<f>1</f>b)", "()"], ["(a<f>1</f>b", "(<f2)"]),
    (separated(F, G), ["", "<f>1</f>", "<f>1</f>, <f2>aend"], ["<f>1</f>, ", "<f>1</f><f>"]),
    (separated(F, at_least_one=True), ["<f>1</f>, <f>1</f>"], [""]),
    (separated(F, stop_after_first=True), ["", "<f>1</f>"], ["<f>1</f>, <f>1</f>"]),
    (tag("[", separated(F, separator=""), "]"), ["[]", "[<f>1</f><f>1</f>]"], ["[,]"]),
]


@pytest.mark.parametrize(("form", "good", "bad"), WHOLE)
def test_outputs_have_the_format_from_beginning_to_end(
    backend: GrammarBackend, form: Any, good: list[str], bad: list[str]
) -> None:
    for text in good:
        grammar = make_grammar(backend, form)
        assert takes(grammar, text), text
        assert EOS in allowed(grammar), text
    for text in bad:
        grammar = make_grammar(backend, form)
        assert not (takes(grammar, text) and EOS in allowed(grammar)), text


BAD: list[tuple[str, Any]] = [
    ("format.type", {}),
    ("format.type", 1),
    ("format.type", {"type": ["tag"]}),
    ("format.type", {"type": "grammar", "grammar": "root ::= x"}),
    ("format.value", const("")),
    ("format.value", const("x" * 1025)),
    ("format.json_schema", {"type": "json_schema", "json_schema": "{}"}),
    ("format.pattern", {"type": "regex", "pattern": 1}),
    ("structural_tag", regex("(")),
    ("format: any_text excludes", {**ANY, "excludes": ["x"]}),
    ("format.elements", sequence()),
    (r"format.elements\[0\]: free text must be", sequence(ANY, const("a"))),
    (r"format.elements\[1\].type", either(const("a"), "b")),
    ("format.begin", {"type": "tag", "content": ANY, "end": ""}),
    ("format.end", {**F, "end": ["</f>", "</g>"]}),
    ("format.content.type", tag("<f>", None, "")),
    ("format.triggers", {**triggered(F), "triggers": []}),
    ("format.triggers", {**triggered(F), "triggers": [""]}),
    ("format.tags", triggered()),
    (r"format.tags\[0\]: ", triggered("<f>")),
    (r"format.tags\[0\].begin begins with no trigger", triggered(tag("f", ANY, "."))),
    ("format.at_least_one", triggered(F, at_least_one=1)),
    ("format.separator", separated(F, separator=1)),
    ("formats", sequence(*[either(*[const("a")] * 256)] * 5)),
]


@pytest.mark.parametrize(("message", "form"), BAD)
def test_what_is_no_format_is_told(backend: GrammarBackend, message: str, form: Any) -> None:
    with pytest.raises(GrammarError, match=message):
        make_grammar(backend, form)


def test_only_one_of_the_shapes_is_taken(backend: GrammarBackend) -> None:
    with pytest.raises(GrammarError, match="format excludes structures"):
        make_grammar(backend, ANY, triggers=["a"])


def test_a_large_tree_compiles(backend: GrammarBackend) -> None:
    calls = [tag(f"<f{i}>", ONE, "</f>") for i in range(256)]
    assert 2 * len(calls) < MAX_FORMATS
    grammar = make_grammar(backend, triggered(*calls, at_least_one=True))
    assert takes(grammar, "<f255>1</f> and <f17>1</f>")
