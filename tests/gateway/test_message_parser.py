from __future__ import annotations

import itertools

from gateway.message_events import Content, Reasoning
from gateway.message_parser import Message, MessageParser, ToolCall, ToolCallDelta
from gateway.reasoning.think_tags import Begin, ThinkTagSplitter
from gateway.tools.hermes import HermesParser
from gateway.tools.json_calls import JsonCallsParser, NamedCallParser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TEXT = f"<think>\nI call {CALL} soon.\n</think>\n\nLook: {CALL}\n{CALL} ok"


def make_parser(max_calls: int | None = None, shows_reasoning: bool = True) -> MessageParser:
    ids = itertools.count()
    return MessageParser(
        ThinkTagSplitter(Begin.EITHER),
        HermesParser(),
        new_id=lambda: f"id{next(ids)}",
        max_calls=max_calls,
        shows_reasoning=shows_reasoning,
    )


def read(parser: MessageParser, pieces: list[str]) -> Message:
    message = Message()
    for piece in pieces:
        message.add(parser.push(piece))
    message.add(parser.finish())
    return message


def test_reasoning_content_and_calls_are_told_apart_in_whole_and_in_pieces() -> None:
    whole = read(make_parser(), [TEXT])
    assert whole == Message(
        content="Look:\nok",
        reasoning=f"I call {CALL} soon.",
        tool_calls=[ToolCall("id0", "add", '{"a": 1}'), ToolCall("id1", "add", '{"a": 1}')],
    )
    for cut in range(len(TEXT)):
        assert read(make_parser(), [TEXT[:cut], TEXT[cut:]]) == whole
    assert read(make_parser(), list(TEXT)) == whole


def test_the_first_delta_of_a_call_has_id_and_name() -> None:
    parser = make_parser()
    events = [event for char in TEXT for event in parser.push(char)]
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    for index in (0, 1):
        first, *others = [delta for delta in deltas if delta.index == index]
        assert first == ToolCallDelta(index, "", f"id{index}", "add")
        assert {(delta.id, delta.name) for delta in others} == {("", "")}
        assert "".join(delta.arguments for delta in others) == '{"a": 1}'


def test_calls_beyond_the_most_are_left_out() -> None:
    parser = make_parser(max_calls=1)
    message = read(parser, [TEXT])
    assert [call.id for call in message.tool_calls] == ["id0"]
    assert (message.content, parser.has_calls) == ("Look:\nok", True)


def test_reasoning_can_be_left_out() -> None:
    message = read(make_parser(shows_reasoning=False), [TEXT])
    assert (message.reasoning, message.content) == ("", "Look:\nok")


def test_without_parsers_text_is_content() -> None:
    parser = MessageParser()
    assert parser.push("") == []
    assert parser.push(TEXT) == [Content(TEXT)]
    assert parser.finish() == []
    assert not parser.has_calls


def test_a_named_call_is_the_whole_answer() -> None:
    parser = MessageParser(
        ThinkTagSplitter(Begin.EITHER), NamedCallParser("add"), new_id=lambda: "i"
    )
    message = read(parser, list('<think>Hm</think>\n{"a": 1}'))
    assert message == Message(reasoning="Hm", tool_calls=[ToolCall("i", "add", '{"a": 1}')])
    assert read(MessageParser(tools=NamedCallParser("add")), []) == Message()


def test_reasoning_that_does_not_end_holds_no_call() -> None:
    parser = make_parser()
    assert parser.push(f"<think>{CALL}") == [Reasoning(CALL)]
    assert parser.finish() == []


def test_calls_of_an_array_are_numbered() -> None:
    parser = MessageParser(tools=JsonCallsParser(["add"]), new_id=lambda: "i")
    text = '[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {"a": 2}}]'
    calls = read(parser, list(text)).tool_calls
    assert [call.arguments for call in calls] == ["{}", '{"a": 2}']
