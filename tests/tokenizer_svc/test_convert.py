from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.kit.errors import InvalidRequestError
from pagewire.v1 import tokenizer_pb2
from tokenizer_svc.convert import chat_from_proto, file_chunks, frame_from_proto


def message(**fields: Any) -> dict[str, Any]:
    request = tokenizer_pb2.RenderChatRequest(messages=[fields])
    return dict(chat_from_proto(request).messages[0])


def call(arguments: Any) -> str:
    return json.dumps([{"id": "1", "function": {"name": "f", "arguments": arguments}}])


def test_absent_fields_are_absent() -> None:
    assert message(role="user", content="x") == {"role": "user", "content": "x"}


def test_absent_content_is_empty() -> None:
    assert message(role="assistant")["content"] == ""


def test_reasoning_is_known_under_both_names() -> None:
    converted = message(role="assistant", reasoning_content="hm")
    assert converted["reasoning_content"] == converted["reasoning"] == "hm"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {})],
)
def test_arguments_of_tool_calls_are_objects(arguments: Any, expected: Any) -> None:
    converted = message(role="assistant", tool_calls_json=call(arguments))
    assert converted["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}


@pytest.mark.parametrize("arguments", ["{", "[]", "1"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        message(role="assistant", tool_calls_json=call(arguments))
    assert caught.value.field == "messages[0].tool_calls_json"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_message": True}, False),
    ],
)
def test_a_new_turn_is_the_default_unless_the_last_goes_on(
    fields: dict[str, bool], expected: bool
) -> None:
    request = tokenizer_pb2.RenderChatRequest(**fields)
    assert chat_from_proto(request).add_generation_prompt is expected


def test_rows_share_the_columns() -> None:
    frame = frame_from_proto(
        tokenizer_pb2.DetokenizeRequest(
            handles=[7, 8, 9],
            token_counts=[2, 0, 1],
            token_ids=[1, 2, 3],
            ends=[False, True, False],
            last_is_stop_token=[False, False, True],
        )
    )
    rows = [
        (row.handle, list(row.token_ids), row.end, row.last_is_stop_token) for row in frame.rows
    ]
    assert rows == [(7, [1, 2], False, False), (8, [], True, False), (9, [3], False, True)]


def test_an_open_has_the_contracts_defaults() -> None:
    frame = frame_from_proto(tokenizer_pb2.DetokenizeRequest(opens=[{"handle": 3}]))
    options = frame.opens[0].options
    assert options.skip_special_tokens
    assert (options.stop, options.min_tokens, options.include_stop_str_in_output) == ((), 0, False)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_files_are_cut_into_chunks(size: int) -> None:
    chunks = list(file_chunks("x", b"a" * size))
    assert b"".join(chunk.chunk for chunk in chunks) == b"a" * size
    assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert {chunk.size for chunk in chunks} == {size}
