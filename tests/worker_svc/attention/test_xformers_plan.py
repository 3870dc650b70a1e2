from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_svc.attention.xformers_plan import (
    MAX_GATHERED_TOKENS,
    MAX_PIECES,
    MAX_UNIFORM_QUERIES,
    StepPlan,
    plan_step,
)

ROWS = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 700)), min_size=1, max_size=8)
"""(tokens computed before the step, tokens of the step) of each row."""


def make_plan(
    rows: list[tuple[int, int]], window: int | None = None, gather: bool = False
) -> StepPlan:
    return plan_step(
        [before + length for before, length in rows],
        [0, *accumulate(length for _, length in rows)],
        window=window,
        block_size=16,
        gather=gather,
    )


@given(ROWS, st.sampled_from([None, 1, 40]), st.booleans())
def test_every_token_is_computed_once_over_the_positions_it_sees(
    rows: list[tuple[int, int]], window: int | None, gather: bool
) -> None:
    plan = make_plan(rows, window, gather)
    positions = [before + i for before, length in rows for i in range(length)]
    seen: Counter[int] = Counter()
    for group in plan.pieces:
        assert 1 <= group.query_len <= (MAX_UNIFORM_QUERIES if window is None else 1)
        assert 1 <= len(group.rows) <= MAX_PIECES
        tokens = group.tokens()
        seen.update(tokens)
        for piece, kv_end in enumerate(group.kv_ends):
            last = tokens[(piece + 1) * group.query_len - 1]
            assert kv_end == positions[last] + 1
    for call in plan.gathered:
        seen.update(call.tokens())
        assert len(call.rows) == 1 or sum(call.kv_lens()) <= MAX_GATHERED_TOKENS
        for row, begin, end in zip(call.rows, call.kv_begins, call.kv_ends, strict=True):
            before, length = rows[row]
            first_seen = 0 if window is None else max(0, before - window + 1)
            assert end == before + length
            assert length > MAX_UNIFORM_QUERIES
            assert begin % 16 == 0 and first_seen - 16 < begin <= first_seen
    assert seen == dict.fromkeys(range(len(positions)), 1)


def test_rows_of_equal_length_share_a_call() -> None:
    plan = make_plan([(5, 1), (9, 1), (20, 4), (7, 4), (0, 33)])
    shapes = sorted((group.query_len, group.rows) for group in plan.pieces)
    assert shapes == [(1, [0, 1, 4]), (4, [2, 3]), (16, [4, 4])]


@pytest.mark.parametrize("window", [None, 50])
def test_gathered_calls_are_bounded(window: int | None) -> None:
    rows = [(30_000, 17)] * 5 + [(100_000, 17)]
    sizes = [sum(call.kv_lens()) for call in make_plan(rows, window, gather=True).gathered]
    assert len(sizes) == (4 if window is None else 1)
    assert max(sizes) == (100_017 if window is None else sum(sizes))
