"""Matches are what the engine would find: its hashes and block size, all but the last token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_match import MAX_BLOCKS, PromptPrefix, match_prefix, prefix_hashes
from pagewire.block_hash import hash_block, hash_blocks


def holding(hashes, block_size=4):
    index = PrefixIndex(block_size)
    index.take_snapshot(hashes, 0, True)
    return index


def test_hashes_are_the_engines_with_salt_and_adapter():
    tokens = list(range(13))
    first = hash_block(None, tokens[:4], ["lora:d", "salt:s"])
    second = hash_block(first, tokens[4:8], ["lora:d"])
    found = list(prefix_hashes(PromptPrefix(tokens, "s", "d"), 4))
    assert found[:2] == [first, second]
    assert len(found) == 3


@given(num_tokens=st.integers(1, 200), block_size=st.integers(1, 17))
def test_chunks_make_the_same_chain(num_tokens, block_size):
    tokens = list(range(num_tokens))
    expected = hash_blocks(None, tokens[:-1], block_size)
    assert list(prefix_hashes(PromptPrefix(tokens), block_size)) == expected


@given(
    num_tokens=st.integers(1, 200),
    held=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    hole=st.integers(0, 60),
)
def test_a_match_is_the_leading_run_of_blocks(num_tokens, held, hole):
    prompt = PromptPrefix(list(range(num_tokens)))
    chain = list(prefix_hashes(prompt, 4))
    sets = [[h for i, h in enumerate(chain[:count]) if i != hole] for count in held]
    matched = match_prefix(prompt, [holding(hashes) for hashes in sets])
    assert matched == [4 * min(count, hole, len(chain)) for count in held]


def test_the_whole_prompt_is_never_counted():
    tokens = list(range(8))
    index = holding(hash_blocks(None, tokens, 4))
    assert match_prefix(PromptPrefix(tokens), [index]) == [4]


def test_another_salt_finds_nothing():
    tokens = list(range(9))
    index = holding(hash_blocks(None, tokens, 4, first_extra_keys=["salt:a"]))
    assert match_prefix(PromptPrefix(tokens, "a"), [index]) == [8]
    assert match_prefix(PromptPrefix(tokens, "b"), [index]) == [0]


def test_replicas_may_have_blocks_of_different_sizes():
    tokens = list(range(33))
    indexes = [holding(hash_blocks(None, tokens, size), size) for size in (4, 16)]
    assert match_prefix(PromptPrefix(tokens), indexes) == [32, 32]


def test_an_index_that_is_not_current_has_nothing():
    tokens = list(range(9))
    paused = holding(hash_blocks(None, tokens, 4))
    paused.pause()
    assert match_prefix(PromptPrefix(tokens), [paused, PrefixIndex()]) == [0, 0]


def test_the_work_for_one_prompt_is_bounded():
    assert len(list(prefix_hashes(PromptPrefix([0] * 10_000), 1))) == MAX_BLOCKS
