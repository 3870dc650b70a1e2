"""What is seen of a form without compiling it; the rest is in test_grammar_backend."""

from __future__ import annotations

import json

import pytest

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import GRAMMAR_TOO_COMPLEX, INVALID_GRAMMAR, GrammarError
from scheduler_svc.grammar_source import MAX_DEFINITIONS, describe, grammar_source


def lark_of(outputs: StructuredOutputs) -> str:
    return str(json.loads(grammar_source(outputs))["grammars"][0]["lark_grammar"])


def test_every_form_is_one_lark_grammar_with_the_option_last() -> None:
    """A later option wins, and positions in the client's own text stay as they are."""
    for form in (
        StructuredOutputs(json_object=True),
        StructuredOutputs(regex="a/b\n"),
        StructuredOutputs(choice=("a",)),
        StructuredOutputs(grammar='%llguidance {"no_forcing": false}\nstart: "a"'),
    ):
        container = json.loads(grammar_source(form))
        assert [set(grammar) for grammar in container["grammars"]] == [{"lark_grammar"}]
        assert lark_of(form).rstrip().endswith('%llguidance {"no_forcing": true}')


def test_a_grammar_in_the_librarys_container_format_stays_lark() -> None:
    text = '{"grammars": [{"json_schema": {}}]}'
    assert lark_of(StructuredOutputs(grammar=text)).startswith(text)


@pytest.mark.parametrize(
    "text",
    [
        'T: "x" & "y"',
        "T: ~/x/",
        'T: "\\\\" & "x"',
        "T: /\\\\/ & /x/",
        "T: /#/ & /x/",
        'T: "//" & "x"',
        '// "\nT: /a/ & /b/ // "',
        '# "\nT: /a/ & /b/ # "',
        'T: %json {"const": "&"} & "x"',
    ],
)
def test_operators_without_a_bound_are_found_wherever_they_hide(text: str) -> None:
    with pytest.raises(GrammarError, match="& and ~") as caught:
        grammar_source(StructuredOutputs(grammar=text))
    assert caught.value.reason == INVALID_GRAMMAR


@pytest.mark.parametrize(
    "text", ['T: "&~"', "T: /&~\\//", "T: /a\n&/", '// & ~\nT: "x" # &', 'T: "\\"&"']
)
def test_quoted_operators_are_text(text: str) -> None:
    assert lark_of(StructuredOutputs(grammar=text)).startswith(text)


@pytest.mark.parametrize("text", ['"' + '\\"' * 120_000, "/" + "\\/" * 120_000 + "\\", '"\\' * 9])
def test_text_that_is_never_closed_is_read_once(text: str) -> None:
    """Reading on from each quote again would take minutes."""
    assert lark_of(StructuredOutputs(grammar=text)).startswith(text)


def test_definitions_are_counted_outside_of_texts() -> None:
    colons = ":" * (MAX_DEFINITIONS + 1)
    assert lark_of(StructuredOutputs(grammar=f'T: "{colons}"'))
    with pytest.raises(GrammarError) as caught:
        grammar_source(StructuredOutputs(grammar=colons))
    assert caught.value.reason == GRAMMAR_TOO_COMPLEX


def test_a_long_message_of_the_library_is_cut() -> None:
    error = describe(StructuredOutputs(grammar="x"), "unknown name: " + "x" * 10_000)
    assert len(error.message) < 400 and error.message.endswith("…")


def test_a_message_without_text_still_says_something() -> None:
    assert describe(StructuredOutputs(regex="x"), "").message == "regex: it is not valid"


@pytest.mark.parametrize("depth", [300, 930, 990])
def test_a_schema_that_nests_too_deeply_is_refused(depth: int) -> None:
    schema = '{"not":' * depth + "{}" + "}" * depth
    with pytest.raises(GrammarError) as caught:
        grammar_source(StructuredOutputs(json_schema=schema))
    assert "at most" in str(caught.value) or "JSON" in str(caught.value)
