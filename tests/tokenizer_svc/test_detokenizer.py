from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.detokenizer import DetokenizeOptions, Detokenizer, NewText, StopHit
from tokenizer_svc.model_tokenizer import ModelTokenizer


def start(model: ModelTokenizer, **options: object) -> Detokenizer:
    return Detokenizer(model.decoder_tables, DetokenizeOptions(**options))  # type: ignore[arg-type]


def test_tokens_become_text(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level)
    ids = byte_level.encode("hello w", False)
    assert detokenizer.append(ids[:1]).text == "hello"
    assert detokenizer.append(ids[1:]).text == " w"
    assert detokenizer.num_tokens == 2


def test_context_is_no_text(byte_level: ModelTokenizer) -> None:
    context = tuple(byte_level.encode("the whole prompt", False))
    detokenizer = start(byte_level, context_token_ids=context)
    assert detokenizer.append(byte_level.encode("!", False)).text == "!"
    assert detokenizer.num_tokens == 1


def test_special_tokens_are_skipped_or_kept(byte_level: ModelTokenizer) -> None:
    ids = byte_level.encode("a<|end|>b", False)
    assert start(byte_level).append(ids).text == "ab"
    assert start(byte_level, skip_special_tokens=False).append(ids).text == "a<|end|>b"


def test_a_stop_string_across_tokens_ends_the_text(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level, stop=("o w",))
    ids = byte_level.encode("hello w", False)
    assert detokenizer.append(ids[:1]) == NewText("hell")
    assert detokenizer.append(ids[1:]) == NewText("", StopHit(0, 2))


def test_after_a_stop_nothing_comes(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level, stop=("h",))
    ids = byte_level.encode("ahx", False)
    assert detokenizer.append(ids) == NewText("a", StopHit(0, 2))
    assert detokenizer.append(ids, end=True) == NewText("")
    assert detokenizer.num_tokens == 2


def test_the_rest_of_the_token_that_completes_a_stop_is_dropped(
    byte_level: ModelTokenizer,
) -> None:
    detokenizer = start(byte_level, stop=("el",), include_stop_str_in_output=True)
    assert detokenizer.append(byte_level.encode("hello", False)) == NewText("hel", StopHit(0, 1))


def test_what_is_held_back_comes_at_the_end(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level, stop=("xyz",))
    assert detokenizer.append(byte_level.encode("axy", False)).text == "a"
    assert detokenizer.append([], end=True).text == "xy"


def test_an_incomplete_character_comes_at_the_end(byte_level: ModelTokenizer) -> None:
    ids = byte_level.encode("a\u00e9", False)[:-1]
    assert start(byte_level).append(ids, end=True).text == "a\ufffd"
    assert start(byte_level, stop=("x",)).append(ids, end=True).text == "a\ufffd"


def test_the_stop_token_counts_but_is_no_text(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level, stop=("xyz",))
    ids = byte_level.encode("abc", False)
    assert detokenizer.append(ids, last_is_stop_token=True, end=True).text == "ab"
    assert detokenizer.num_tokens == 3


def test_stop_strings_do_not_count_before_min_tokens(byte_level: ModelTokenizer) -> None:
    detokenizer = start(byte_level, stop=("a",), min_tokens=2)
    assert detokenizer.append(byte_level.encode("aaaa", False)) == NewText("aa", StopHit(0, 3))


@settings(deadline=None, max_examples=300)
@given(
    text=st.text("hel lo\u00e9\U0001f600", max_size=20),
    stop=st.lists(st.text("helo \u00e9", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_replay_gives_what_token_by_token_gave(
    byte_level: ModelTokenizer, text: str, stop: list[str], cuts: list[int], include: bool
) -> None:
    ids = byte_level.encode(text, False)
    options = {"stop": tuple(stop), "include_stop_str_in_output": include}
    once = start(byte_level, **options).append(ids, end=True)
    pieces, hit = start(byte_level, **options), None
    shown, position, turn = "", 0, 0
    while position < len(ids) and hit is None:
        size = cuts[turn % len(cuts)]
        new = pieces.append(ids[position : position + size])
        shown, hit = shown + new.text, new.stop_hit
        # What a gateway has sent so far is a prefix of what a replay of these tokens gives.
        replayed = start(byte_level, **options).append(ids[: position + size]).text
        assert replayed == shown
        position, turn = position + size, turn + 1
    if hit is None:
        shown += pieces.append([], end=True).text
    assert (shown, hit) == (once.text, once.stop_hit)
