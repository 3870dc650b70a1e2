"""Pages of several groups against the oracle's definition, and what spoils them."""

from __future__ import annotations

import numpy as np
import pytest

from pagewire.sampling_params import SamplingParams
from tests.worker_svc.harness import VOCABULARY
from worker_svc.sim.group_pages import GroupPages
from worker_svc.sim.hashing import MASK, POWER, next_chain
from worker_svc.sim.oracle import _Context, _WindowedContext, expected_tokens
from worker_svc.sim.token_pages import Blocks, TokenPages

TOKENS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
LAYOUTS = [(0,), (0, 5), (5,), (4, 0, 9), (0, 0), (1, 0), (1,), (1, 1), (1, 3), (100, 2)]


def tables_of(num_groups: int, block_size: int = 4) -> list[Blocks]:
    num_blocks = -(-len(TOKENS) // block_size)
    ids = np.arange(1, num_groups * num_blocks + 1, dtype=np.int64)
    return [ids[i::num_groups].copy() for i in range(num_groups)]


def context_of(windows: tuple[int, ...], token_ids: list[int]) -> int:
    context = _WindowedContext(windows)
    for token_id in token_ids:
        context.append(token_id)
    return context.value


def test_one_full_group_is_what_it_is_without_groups() -> None:
    plain = _Context()
    for token_id in TOKENS:
        plain.append(token_id)
    assert context_of((0,), TOKENS) == plain.value


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("windows", LAYOUTS)
def test_reading_gives_the_definition_of_what_was_written(
    windows: tuple[int, ...], block_size: int
) -> None:
    pages, tables = GroupPages(windows, 64, block_size), tables_of(len(windows), block_size)
    pages.write(tables, 0, TOKENS)
    for num_tokens in range(1, len(TOKENS) + 1):
        assert pages.read(tables, num_tokens) == context_of(windows, TOKENS[:num_tokens])


@pytest.mark.parametrize("windows", LAYOUTS)
def test_chunks_write_what_one_write_does(windows: tuple[int, ...]) -> None:
    pages, tables = GroupPages(windows, 64, 4), tables_of(len(windows))
    for start, end in ((0, 3), (3, 4), (4, 9), (9, 10), (10, 13)):
        pages.write(tables, start, TOKENS[start:end])
    assert pages.read(tables, len(TOKENS)) == context_of(windows, TOKENS)


def test_tokens_that_were_taken_back_leave_nothing() -> None:
    pages, tables = GroupPages((0, 5), 64, 4), tables_of(2)
    pages.write(tables, 0, [*TOKENS[:6], 90, 91, 92])
    pages.write(tables, 6, TOKENS[6:])
    assert pages.read(tables, len(TOKENS)) == context_of((0, 5), TOKENS)


@pytest.mark.parametrize("num_tokens", range(1, len(TOKENS) + 1))
@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 30])
def test_a_window_is_the_sum_over_its_positions(window: int, num_tokens: int) -> None:
    pages, table = TokenPages(16, 4), np.array([3, 9, 5, 7], dtype=np.int64)
    chains, chain = [], 0
    for token_id in TOKENS:
        chain = next_chain(chain, token_id)
        chains.append(chain)
    pages.store(table, 0, chains)
    first = max(0, num_tokens - window)
    table[: first // 4] = 0  # not read any more
    terms = [chains[p] * POWER**p for p in range(first, num_tokens)]
    assert pages.read(table, num_tokens, window) == sum(terms) & MASK


@pytest.mark.parametrize("group_id", [0, 1, 2])
def test_a_null_block_within_a_window_changes_the_context(group_id: int) -> None:
    windows = (0, 5, 9)
    pages, tables = GroupPages(windows, 64, 4), tables_of(3)
    pages.write(tables, 0, TOKENS)
    right = context_of(windows, TOKENS)
    # Of 13 tokens the windows see from 0, 8 and 4 on.
    first = (0, 2, 1)[group_id]
    tables[group_id][:first] = 0
    assert pages.read(tables, len(TOKENS)) == right
    tables[group_id][first] = 0
    assert pages.read(tables, len(TOKENS)) != right


@pytest.mark.parametrize(("null", "is_right"), [(1, True), (2, False)])
def test_every_token_of_a_chunk_sees_its_own_window(null: int, is_right: bool) -> None:
    # The last token sees tokens 9 to 12, all in this chunk; the first of it saw 5 to 7 before it.
    pages, tables = GroupPages((4,), 64, 4), tables_of(1)
    pages.write(tables, 0, TOKENS[:8])
    tables[0][:null] = 0
    pages.write(tables, 8, TOKENS[8:])
    assert (pages.read(tables, len(TOKENS)) == context_of((4,), TOKENS)) == is_right


def test_a_model_of_windows_gives_other_tokens_than_one_without() -> None:
    params = SamplingParams(temperature=0.0)
    outputs = {
        windows: tuple(expected_tokens(TOKENS, params, 8, VOCABULARY, windows=windows))
        for windows in LAYOUTS
    }
    assert len(set(outputs.values())) == len(LAYOUTS)
