from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.message_events import Content, Reasoning
from gateway.reasoning.registry import REASONING_STYLES
from gateway.reasoning.think_tags import MAX_HELD_CHARS, ThinkTagSplitter, begin_of

CASES = [
    # style, end of the prompt, output, reasoning, answer
    ("deepseek_r1", "<assistant>", "Hm.\n</think>\n\nYes", "Hm.", "Yes"),
    ("deepseek_r1", "<assistant>", "<think>\nHm.\n</think>\n\nYes", "Hm.", "Yes"),
    ("deepseek_r1", "<think>\n", "Hm.</think>Yes", "Hm.", "Yes"),
    ("deepseek_r1", "<assistant>", "Hm, cut off\n", "Hm, cut off\n", ""),
    ("deepseek_r1", "<think>\n\n</think>\n\n", "Yes </think>", "", "Yes </think>"),
    ("qwen3", "<assistant>", "<think>\nHm.\n\nOh.\n</think>\n\nYes\n", "Hm.\n\nOh.", "Yes\n"),
    ("qwen3", "<assistant>", "\n <think></think>Yes", "", "Yes"),
    ("qwen3", "<assistant>", "Yes, 1 < 2", "", "Yes, 1 < 2"),
    ("qwen3", "<assistant>", "  <thin", "", "  <thin"),
    ("qwen3", "<assistant>", "<think>Hm. </thin", "Hm. </thin", ""),
    ("qwen3", "<think>\n", "Hm.\n</think>\n\nYes <think>", "Hm.", "Yes <think>"),
    ("qwen3", "<think>\n", "<think>Hm.</think>Yes", "Hm.", "Yes"),
    ("qwen3", "<think>\n\n</think>\n\n", "Yes", "", "Yes"),
    ("qwen3", "<assistant>", "<think>a</think>\n\n", "a", ""),
    ("qwen3", "<assistant>", "", "", ""),
    ("qwen3", "<think>", "a" + "\n" * 300 + "</think>b", "a" + "\n" * 44, "b"),
]


def make_splitter(style: str, prompt: str) -> ThinkTagSplitter:
    return ThinkTagSplitter(begin_of(prompt, REASONING_STYLES[style]))


def read(splitter: ThinkTagSplitter, pieces: list[str]) -> tuple[str, str]:
    events = [event for piece in pieces for event in splitter.push(piece)] + splitter.finish()
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    return reasoning, "".join(event.text for event in events if isinstance(event, Content))


@pytest.mark.parametrize(("style", "prompt", "text", "reasoning", "answer"), CASES)
def test_outputs_are_split_the_same_in_whole_and_in_all_pieces(
    style: str, prompt: str, text: str, reasoning: str, answer: str
) -> None:
    for cut in range(len(text) + 1):
        pieces = [text[:cut], text[cut:]]
        assert read(make_splitter(style, prompt), pieces) == (reasoning, answer), pieces
    assert read(make_splitter(style, prompt), list(text)) == (reasoning, answer)


PIECES = ["<think>", "</think>", "<", "think>", "/", "\n", " ", "word", "é"]


@given(
    st.sampled_from(sorted(REASONING_STYLES)),
    st.sampled_from(["", "<think>\n", "</think>\n"]),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
)
def test_any_text_is_split_the_same_in_pieces(style: str, prompt: str, text: str) -> None:
    whole = read(make_splitter(style, prompt), [text])
    assert read(make_splitter(style, prompt), list(text)) == whole


def test_reasoning_goes_out_at_once_but_for_what_may_be_the_tag() -> None:
    splitter = make_splitter("qwen3", "<think>\n")
    assert splitter.push("Hm. Well\n") == [Reasoning("Hm. Well")]
    assert splitter.push("</th") == []
    assert splitter.push("ink>A") == [Content("A")]
    assert splitter.push("<think>") == [Content("<think>")]


def test_what_is_held_is_bounded() -> None:
    splitter = make_splitter("deepseek_r1", "")
    shown = 0
    for _ in range(10 * MAX_HELD_CHARS):
        shown += sum(len(event.text) for event in splitter.push("a\n\n"))
    assert shown >= 30 * MAX_HELD_CHARS - MAX_HELD_CHARS
