from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.vllm_engine.stop_strings import StopStringMatcher
from scheduler_svc.vocabulary import Vocabulary

TOKENS = (b"a", b"b", b"ab", b"ba", b"<s>", "é".encode()[:1], "é".encode()[1:], b"")
SPECIAL = 4
VOCABULARY = Vocabulary(TOKENS, frozenset({SPECIAL}), "")


def first_hit(token_ids, *stop, min_tokens=0, skip_special_tokens=True):
    """(tokens kept, which string), token by token."""
    matcher = StopStringMatcher(
        VOCABULARY, stop, min_tokens, skip_special_tokens=skip_special_tokens
    )
    for number, token_id in enumerate(token_ids, 1):
        hit = matcher.push([token_id])
        if hit is not None:
            return number, hit[1]
    return None


def test_a_string_is_found_over_the_edges_of_tokens():
    assert first_hit([0, 2, 3], "bb") == (3, 0)


def test_a_character_may_come_in_pieces():
    assert first_hit([0, 5, 6], "é") == (3, 0)


def test_the_string_that_ends_first_wins_and_then_the_first_in_the_list():
    assert first_hit([2], "ab", "a") == (1, 1)
    assert first_hit([2], "b", "ab") == (1, 0)


def test_special_tokens_are_no_text_unless_they_are_asked_for():
    assert first_hit([0, SPECIAL, 1], "ab") == (3, 0)
    assert first_hit([0, SPECIAL, 1], "<s>") is None
    assert first_hit([0, SPECIAL], "<s>", skip_special_tokens=False) == (2, 0)


def test_what_the_first_tokens_complete_does_not_count():
    assert first_hit([0, 0, 0], "a", min_tokens=2) == (3, 0)


def test_ids_beyond_the_vocabulary_are_no_text():
    assert first_hit([0, 999, 1], "ab") == (3, 0)


@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_however_tokens_come_the_hit_is_where_the_text_says(token_ids, stop, size):
    matcher = StopStringMatcher(VOCABULARY, stop, 0, skip_special_tokens=True)
    hit = None
    for start in range(0, len(token_ids), size):
        found = matcher.push(token_ids[start : start + size])
        if found is not None:
            hit = start + found[0]
            break
    expected = next(
        (
            number
            for number in range(1, len(token_ids) + 1)
            if any(
                text.encode() in b"".join(TOKENS[i] for i in token_ids[:number]) for text in stop
            )
        ),
        None,
    )
    assert hit == expected
