from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.stop_strings import StopStringMatcher

# Few letters, so that stop strings overlap with themselves and with each other.
TEXT = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def run(
    stop: list[str], pieces: list[str], include: bool = False
) -> tuple[list[str], int | None, str]:
    matcher = StopStringMatcher(stop, include)
    shown = []
    for piece in pieces:
        matched = matcher.push(piece)
        shown.append(matched.text)
        if matched.stop_index is not None:
            return shown, matched.stop_index, ""
    return shown, None, matcher.flush()


def naive(stop: list[str], text: str, include: bool) -> tuple[str, int | None]:
    """The first prefix of the text that ends with a stop string; of several, list order."""
    for end in range(1, len(text) + 1):
        for index, candidate in enumerate(stop):
            if text[:end].endswith(candidate):
                return text[: end if include else end - len(candidate)], index
    return text, None


@settings(deadline=None, max_examples=500)
@given(stop=STOPS, pieces=st.lists(TEXT, max_size=8), include=st.booleans())
def test_any_split_finds_the_stop_string_that_ends_first(
    stop: list[str], pieces: list[str], include: bool
) -> None:
    shown, index, rest = run(stop, pieces, include)
    assert ("".join(shown) + rest, index) == naive(stop, "".join(pieces), include)


@settings(deadline=None, max_examples=300)
@given(stop=STOPS, pieces=st.lists(TEXT, max_size=8))
def test_what_is_shown_never_depends_on_what_comes(stop: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    characters, _, _ = run(stop, list(text))
    whole, _, _ = run(stop, [text])
    assert "".join(characters) == "".join(whole)


@settings(deadline=None, max_examples=300)
@given(stop=STOPS, pieces=st.lists(TEXT, max_size=8))
def test_less_is_held_back_than_the_longest_stop_string(stop: list[str], pieces: list[str]) -> None:
    _, index, rest = run(stop, pieces)
    assert index is not None or len(rest) < max(map(len, stop))


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    shown, _, rest = run(["<end>"], ["abc", "<", "e", "f"])
    assert (shown, rest) == (["abc", "", "", "<ef"], "")


def test_the_end_of_a_text_comes_out() -> None:
    assert run(["<end>"], ["abc<en"]) == (["abc"], None, "<en")


def test_a_stop_string_across_pieces_is_found() -> None:
    assert run(["STOP"], ["abST", "OPcd"]) == (["ab", ""], 0, "")


def test_the_stop_string_stays_where_it_is_asked_for() -> None:
    shown, index, _ = run(["STOP"], ["abST", "OPcd"], include=True)
    assert ("".join(shown), index) == ("abSTOP", 0)


def test_with_the_stop_string_in_the_text_nothing_is_held_back() -> None:
    shown, _, rest = run(["STOP"], ["abST", "x"], include=True)
    assert (shown, rest) == (["abST", "x"], "")


@pytest.mark.parametrize(("stop", "index"), [(["b", "ab"], 0), (["ab", "b"], 0)])
def test_a_tie_goes_by_list_order(stop: list[str], index: int) -> None:
    shown, found, _ = run(stop, ["xab"])
    assert found == index
    assert "".join(shown) == "xab".removesuffix(stop[index])


def test_the_one_that_ends_first_wins_also_where_another_begins_first() -> None:
    shown, index, _ = run(["abcd", "bc"], ["abcd"])
    assert (shown, index) == (["a"], 1)


def test_text_that_does_not_count_is_passed_over() -> None:
    matcher = StopStringMatcher(["ab"], include_in_output=False)
    assert matcher.push("ab", counts=False).text == "ab"
    matched = matcher.push("xab")
    assert (matched.text, matched.stop_index) == ("x", 0)


def test_a_stop_string_begun_before_it_counts_ends_the_text() -> None:
    matcher = StopStringMatcher(["ab"], include_in_output=False)
    assert matcher.push("xa", counts=False).text == "x"
    assert matcher.push("b").stop_index == 0


def test_a_shorter_one_within_what_did_not_count_is_not_found_late() -> None:
    matcher = StopStringMatcher(["abcd", "bc"], include_in_output=False)
    assert matcher.push("abc", counts=False).text == ""
    matched = matcher.push("x")
    assert (matched.text, matched.stop_index) == ("abcx", None)
