"""Events that are cut from prepared JSON equal those that are written whole."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.http.json_response import text_to_json, to_json
from gateway.http.text_chunks import TextChunks

TEXTS = [
    "plain",
    "",
    'quotes " and \\ and /',
    "line\nends\r\n\x0b\x0c\x1c\x85\u2028\u2029",
    "\x00\x01\x1f\x7f",
    "é 漢字 🙂 \U0010ffff",
    "half of a pair: \ud83d",
    "data: [DONE]\n\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_string_alone_is_written_as_within_an_object(text: str) -> None:
    assert text_to_json(text) == to_json(text)


@pytest.mark.parametrize("text", TEXTS)
def test_an_event_is_that_of_the_whole_chunk(text: str) -> None:
    def chunk(index: int, value: str) -> dict[str, Any]:
        return {"id": 'a"b', "n": None, "choices": [{"index": index, "text": value, "é": [1]}]}

    chunks = TextChunks(chunk)
    for index in (0, 1, 0):
        expected = b"data: " + to_json(chunk(index, text)) + b"\n\n"
        assert chunks.event(index, text) == expected


def test_a_chunk_is_made_once_an_index() -> None:
    made: list[int] = []

    def chunk(index: int, value: str) -> dict[str, Any]:
        made.append(index)
        return {"text": value}

    chunks = TextChunks(chunk)
    for _ in range(3):
        for index in (0, 1):
            chunks.event(index, "a")
    assert made == [0, 1]
