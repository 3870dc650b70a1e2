"""Texts of others on a terminal."""

from __future__ import annotations

import pytest

from pagewire.kit.plain_text import one_line, plain, without_controls


def test_a_label_is_as_long_as_it_was_and_shows_what_it_can() -> None:
    text = "Zoë\x1b[31m\n模型\u202e\x9b\ud800 1"
    assert one_line(text) == "Zoë [31m 模型    1"
    assert len(one_line(text)) == len(text)


@pytest.mark.parametrize("control", ["\x00", "\x07", "\x08", "\r", "\x1b", "\x7f", "\x85", "\x9b"])
def test_controls_in_an_answer_are_marked(control: str) -> None:
    assert without_controls(f"a{control}[2Jb") == "a\ufffd[2Jb"


def test_lines_and_what_languages_need_stay_in_an_answer() -> None:
    text = "a\tb\n👩\u200d💻 \u0645\u06cc\u200c\u062e"
    assert without_controls(text) == text


def test_a_json_value_is_cleaned_in_all_its_texts() -> None:
    value = {"a\x1b": ["\x1b", {"b": "\n"}], "c": 1.5, "d": None, "e": True}
    assert plain(value) == {"a ": [" ", {"b": " "}], "c": 1.5, "d": None, "e": True}
