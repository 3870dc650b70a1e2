from __future__ import annotations

import json

import pytest

from gateway.http.json_response import to_json


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\n", "\r"])
def test_json_is_one_line_to_every_reader_and_means_the_same(end: str) -> None:
    data = to_json({"text": f"a{end}b"})
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == {"text": f"a{end}b"}


def test_text_stays_readable() -> None:
    assert to_json({"text": "é😀"}) == '{"text":"é😀"}'.encode()


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert to_json("a\ud800") == b'"a?"'
