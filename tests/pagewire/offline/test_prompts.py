"""Tests of what users may give to `LLM`, and of how it is cut into batches."""

from __future__ import annotations

import pytest

from pagewire import ChatMessage, SamplingParams
from pagewire.kit.errors import InvalidRequestError
from pagewire.offline.batches import CallOptions, batch_message, cut
from pagewire.offline.prompts import read_conversations, read_prompts

ONE, TWO = SamplingParams(seed=1), SamplingParams(seed=2)


@pytest.mark.parametrize(
    ("given", "contents"),
    [
        ("a", ["a"]),
        ([1, 2], [(1, 2)]),
        ({"prompt": "a"}, ["a"]),
        (["a", [1, 2], {"prompt": "b"}, {"prompt_token_ids": [3]}, []],
         ["a", (1, 2), "b", (3,), ()]),
        ([], []),
    ],
)  # fmt: skip
def test_prompts_come_in_many_forms(given, contents):
    prompts = read_prompts(given, None)
    assert [prompt.content for prompt in prompts] == contents
    assert [prompt.index for prompt in prompts] == list(range(len(contents)))


@pytest.mark.parametrize("wrong", [None, {"text": "a"}, ["a"], [1.5], b"ab", ["a", None]])
def test_what_is_no_prompt_is_named_by_its_place(wrong):
    with pytest.raises(InvalidRequestError) as caught:
        read_prompts(["a", wrong], None)
    assert caught.value.field == "prompts[1]"


def test_parameters_are_for_all_or_one_for_each():
    assert [p.params for p in read_prompts(["a", "b"], ONE)] == [ONE, ONE]
    assert [p.params for p in read_prompts(["a", "b"], [ONE, TWO])] == [ONE, TWO]
    with pytest.raises(ValueError, match="1 of them for 2 prompts"):
        read_prompts(["a", "b"], [ONE])


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ([{"role": "user", "content": "a"}], 1),
        ([ChatMessage("user", "a")], 1),
        ("a", 1),
        (["a", "b"], 2),
        ([[{"role": "user", "content": "a"}], [ChatMessage("user", "b")]], 2),
        ([], 0),
    ],
)
def test_conversations_come_alone_or_together(given, number):
    prompts = read_conversations(given, None)
    assert len(prompts) == number
    messages = [batch_message(batch, CallOptions()) for batch in cut(prompts, 8)]
    contents = [p.conversation.messages[0].content for m in messages for p in m.prompts]
    assert contents == ["a", "b"][:number]


def test_batches_keep_the_order_and_their_bounds():
    prompts = read_prompts(list("abcdefg"), None)
    assert ["".join(str(p.content) for p in b.prompts) for b in cut(prompts, 3)] == [
        "abc", "def", "g",
    ]  # fmt: skip


def test_a_batch_has_one_set_of_parameters_and_a_bounded_size():
    mixed = read_prompts(list("abcd"), [ONE, ONE, TWO, ONE])
    assert [len(batch.prompts) for batch in cut(mixed, 8)] == [2, 1, 1]
    large = read_prompts(["x" * 600_000] * 2 + ["y" * 2_000_000, "z"], None)
    assert [len(batch.prompts) for batch in cut(large, 8)] == [1, 1, 1, 1]


def test_without_parameters_texts_get_16_tokens_and_conversations_the_context():
    (texts,) = cut(read_prompts("a", None), 1)
    (conversations,) = cut(read_conversations("a", None), 1)
    assert batch_message(texts, CallOptions()).stopping.max_tokens == 16
    assert not batch_message(conversations, CallOptions()).stopping.HasField("max_tokens")


def test_parameters_without_max_tokens_mean_the_whole_context():
    (batch,) = cut(read_prompts("a", ONE), 1)
    message = batch_message(batch, CallOptions(n=3, options={"model": "m", "cache_salt": "s"}))
    assert not message.stopping.HasField("max_tokens") and message.response.return_token_ids
    assert (message.sampling.n, message.model, message.cache.salt) == (3, "m", "s")
