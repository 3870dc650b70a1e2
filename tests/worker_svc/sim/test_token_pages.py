"""What the simulated pages give back, and what spoils it."""

from __future__ import annotations

import numpy as np
import pytest

from worker_svc.sim.hashing import CHAIN_START, MASK, POWER, next_chain
from worker_svc.sim.token_pages import Blocks, TokenPages

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def table(*block_ids: int) -> Blocks:
    return np.array(block_ids, dtype=np.int64)


def context_of(token_ids: list[int]) -> int:
    """The definition, token by token."""
    chain, total = CHAIN_START, 0
    for position, token_id in enumerate(token_ids):
        chain = next_chain(chain, token_id)
        total += chain * POWER**position
    return total & MASK


def written(block_size: int = 4, blocks: Blocks | None = None) -> TokenPages:
    pages = TokenPages(16, block_size)
    pages.write(table(3, 9, 5) if blocks is None else blocks, 0, TOKENS)
    return pages


@pytest.mark.parametrize("num_tokens", range(1, len(TOKENS) + 1))
def test_reading_gives_the_context_of_what_was_written(num_tokens: int) -> None:
    assert written().read(table(3, 9, 5), num_tokens) == context_of(TOKENS[:num_tokens])


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_the_context_does_not_depend_on_the_block_size(block_size: int) -> None:
    blocks = table(*range(1, 11))
    pages = written(block_size, blocks)
    assert pages.read(blocks, len(TOKENS)) == context_of(TOKENS)


def test_chunks_write_what_one_write_does() -> None:
    pages, blocks = TokenPages(16, 4), table(3, 9, 5)
    for start, end in ((0, 3), (3, 4), (4, 9), (9, 10)):
        pages.write(blocks, start, TOKENS[start:end])
    assert pages.read(blocks, 10) == context_of(TOKENS)


def test_a_long_sequence_reads_as_defined() -> None:
    token_ids = [i % 50 for i in range(300)]
    pages, blocks = TokenPages(400, 1), table(*range(1, 301))
    pages.write(blocks, 0, token_ids)
    assert pages.read(blocks, 300) == context_of(token_ids)


@pytest.mark.parametrize("blocks", [(9, 3, 5), (3, 9, 6), (3, 3, 5), (0, 9, 5)])
def test_a_wrong_table_reads_something_else(blocks: tuple[int, ...]) -> None:
    assert written().read(table(*blocks), len(TOKENS)) != context_of(TOKENS)


def test_a_block_that_got_a_new_owner_reads_something_else() -> None:
    pages = written()
    pages.write(table(9), 0, [1])  # one token into a block of another sequence
    assert pages.read(table(3, 9, 5), len(TOKENS)) != context_of(TOKENS)


def test_tokens_behind_the_last_one_written_are_not_read() -> None:
    pages = written()
    pages.write(table(5), 0, [40, 41, 42, 43])
    pages.write(table(5), 0, [50])
    assert pages.read(table(5), 1) == context_of([50])
    assert pages.read(table(5), 2) != context_of([50, 41])


def test_the_same_tokens_after_another_beginning_are_a_false_hit() -> None:
    pages = TokenPages(16, 4)
    pages.write(table(1, 2), 0, [1, 1, 1, 1, 5, 6, 7, 8])
    pages.write(table(3, 4), 0, [2, 2, 2, 2, 5, 6, 7, 8])
    right = context_of([1, 1, 1, 1, 5, 6, 7, 8])
    assert pages.read(table(1, 2), 8) == right
    assert pages.read(table(1, 4), 8) != right


def test_the_null_block_keeps_nothing() -> None:
    pages = TokenPages(16, 4)
    pages.write(table(0), 0, [5, 6])
    assert pages.read(table(0), 2) != context_of([5, 6])
