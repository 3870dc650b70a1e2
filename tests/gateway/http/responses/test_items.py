"""Input items become the messages of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.generation import ChatMessage
from gateway.http.fields import Fields
from gateway.http.responses.items import MAX_ITEMS, read_input
from pagewire.kit.errors import InvalidRequestError


def read(value: Any) -> tuple[ChatMessage, ...]:
    return read_input(Fields({"input": value}))


def test_a_text_is_the_users() -> None:
    assert read("Hi") == (ChatMessage("user", "Hi"),)


def test_an_assistants_items_become_one_message() -> None:
    messages = read(
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [rtext("hm"), rtext("so")]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"x":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "two"}],
            },
        ]
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "tool"]
    turn = messages[2]
    assert (turn.content, turn.reasoning_content) == ("b", "hm\nso")
    calls = json.loads(turn.tool_calls_json)
    assert [(call["id"], call["function"]["name"]) for call in calls] == [("c1", "f"), ("c2", "g")]
    assert messages[3] == ChatMessage("tool", "one", tool_call_id="c1")
    assert messages[4] == ChatMessage("tool", "two", tool_call_id="c2")


def test_a_turn_of_calls_alone_has_no_content() -> None:
    turn = read([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}])[0]
    assert turn.content is None


def rtext(text: str) -> dict[str, str]:
    return {"type": "reasoning_text", "text": text}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "input"),
        (3, "input"),
        ([], "input"),
        (["x"], "input[0]"),
        ([{}], "input[0].type"),
        ([{"type": "web_search_call"}], "input[0].type"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"type": "function_call", "call_id": "c", "name": "f"}], "input[0].arguments"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
        ([{"type": "reasoning", "content": "x", "summary": ["y"]}], "input[0].summary[0]"),
        ([{"type": "reasoning", "content": "x", "summary": 3}], "input[0].summary"),
        ([{"role": "user", "content": "x"}] * (MAX_ITEMS + 1), "input"),
    ],
)
def test_what_is_no_conversation_is_refused_by_name(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(value)
    assert caught.value.field == field
