"""Every format, on scripted transcripts cut in every way, and on whatever else may come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.message_events import CallArguments, CallStart, Content
from gateway.tools.call_reader import MAX_HELD_CHARS
from gateway.tools.registry import AUTO, TOOL_FORMATS, tool_format
from tests.gateway.tools.transcripts import TRANSCRIPTS, Read, Transcript, parser_of, read

PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<|python_start|>", "<|python_end|>", "```json", "```", "[", "]", "{", "}", "(", ")"),
    *(
        '"name"',
        '"arguments"',
        '"parameters"',
        '"add"',
        "add",
        ":",
        ",",
        ";",
        "=",
        "a",
        "1",
        "null",
    ),
    *("'", '"', "'''", "\\", "\\u00e9", " ", "\n", "é", '{"name": "add", "arguments": {'),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@pytest.mark.parametrize("case", TRANSCRIPTS, ids=lambda case: f"{case.parser}: {case.text[:60]}")
def test_transcripts_are_read_the_same_in_whole_and_in_all_pieces(case: Transcript) -> None:
    text = case.text
    assert read(parser_of(case.parser), [text]) == case.read
    assert read(parser_of(case.parser), text) == case.read
    for cut in range(1, len(text)):
        assert read(parser_of(case.parser), [text[:cut], text[cut:]]) == case.read, text[:cut]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([case for case in TRANSCRIPTS if len(case.text) < 200]),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_transcripts_are_read_the_same_in_any_pieces(case: Transcript, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(case.text)) for cut in cuts), len(case.text)]
    pieces = [case.text[a:b] for a, b in pairwise(places)]
    assert read(parser_of(case.parser), pieces) == case.read


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TOOL_FORMATS)), TEXTS, st.integers(1, 5))
def test_any_text_is_read_without_an_error_and_the_same_in_pieces(
    name: str, text: str, size: int
) -> None:
    whole = read(parser_of(name), [text])
    assert read(parser_of(name), [text[i : i + size] for i in range(0, len(text), size)]) == whole
    if not whole.calls:
        assert whole.content == text


def test_arguments_go_out_while_they_are_written() -> None:
    parser = parser_of("hermes")
    head = '<tool_call>{"name": "add", "arguments": '
    assert parser.push(head) == []
    assert parser.push('{"a": ') == [CallStart("add"), CallArguments('{"a": ')]
    assert parser.push("1") == [CallArguments("1")]
    assert parser.push("}}\n</tool_call>") == [CallArguments("}")]


def test_content_goes_out_at_once_but_for_what_may_begin_a_call() -> None:
    parser = parser_of("hermes")
    assert parser.push("Hello <") == [Content("Hello")]
    assert parser.push("b> ") == [Content(" <b>")]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("hermes", '<tool_call>{"x": "'),
        ("hermes", '<tool_call>{"arguments": {"x": "'),
        ("mistral", '[TOOL_CALLS][{"x": "'),
        ("llama3_json", '{"x": "'),
        ("json", '[{"x": "'),
        ("pythonic", "[add(a='"),
        ("hermes", "<tool_call>" + " " * 100),
        ("pythonic", "[" + " " * 100),
    ],
)
def test_a_call_that_stays_uncertain_becomes_content_at_a_bound(name: str, head: str) -> None:
    filler = head[-1] if head.endswith(" ") else "x"
    text = head + filler * (2 * MAX_HELD_CHARS)
    parser = parser_of(name)
    shown = "".join(
        event.text
        for start in range(0, len(text), 1000)
        for event in parser.push(text[start : start + 1000])
        if isinstance(event, Content)
    )
    # What is held at most: a candidate, or the space at the end.
    assert len(text) - len(shown) <= MAX_HELD_CHARS
    assert read(parser_of(name), [text]) == read(parser_of(name), [text[:-1], text[-1:]])
    assert read(parser_of(name), [text]).content == text


def test_the_names_of_parsers_are_told_apart() -> None:
    assert tool_format("hermes", "mistral") is TOOL_FORMATS["hermes"]
    assert tool_format(AUTO, "mistral") is TOOL_FORMATS["mistral"]
    assert tool_format(AUTO, "") is TOOL_FORMATS["json"]
    assert len(TOOL_FORMATS["mistral"].new_id()) == 9
    assert TOOL_FORMATS["hermes"].new_id().startswith("call_")


@pytest.mark.parametrize("digits", ["9" * 5000, "0x" + "f" * 5000, "1." + "0" * 5000])
def test_a_number_that_nobody_writes_is_no_call(digits: str) -> None:
    """Python reads hexadecimal integers of any length, and refuses to write them."""
    text = f"[add(a={digits})]"
    assert read(parser_of("pythonic"), [text]) == Read(text)
