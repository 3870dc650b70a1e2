from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_svc.sampler.factories import make_batch, make_row
from worker_svc.sampler.scratch import Scratch
from worker_svc.sampler.selection import BlockedRows
from worker_svc.sampler.truncation import Truncation, lowest_survivors


def survivors(logits: torch.Tensor, **params: Any) -> list[int]:
    truncation = Truncation.of(make_batch([make_row(**params)]), np.array([0]))
    [threshold] = lowest_survivors(BlockedRows.of(logits[None]), truncation, Scratch()).tolist()
    return ((logits >= threshold) & (logits > -math.inf)).nonzero().flatten().tolist()


def logits_of(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).log()


LOGITS = logits_of(0.1, 0.4, 0.05, 0.3, 0.15)


def test_nothing_is_dropped_unasked() -> None:
    assert survivors(LOGITS) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1]), (2, [1, 3]), (5, [0, 1, 2, 3, 4])])
def test_top_k_keeps_the_likeliest(top_k: int, kept: list[int]) -> None:
    assert survivors(LOGITS, top_k=top_k) == kept


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert survivors(LOGITS, top_k=100) == [0, 1, 2, 3, 4]


def test_ties_at_the_kth_value_are_all_kept() -> None:
    assert survivors(torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0]), top_k=2) == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [1]), (0.39, [1]), (0.5, [1, 3]), (0.84, [1, 3, 4])]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: list[int]) -> None:
    assert survivors(LOGITS, top_p=top_p) == kept


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Of 0.4 and 0.3, the first alone is 57 %.
    assert survivors(LOGITS, top_k=2, top_p=0.5) == [1]


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert survivors(LOGITS, min_p=0.3) == [1, 3, 4]


def test_masked_tokens_stay_out() -> None:
    logits = torch.tensor([-math.inf, 1.0, -math.inf, 0.5])
    assert survivors(logits, top_k=4) == [1, 3]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1, 5, 64, 65, 1000, 3000]),
    spread=st.floats(0.01, 8.0),
    top_k=st.integers(0, 100),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_the_threshold_agrees_with_a_full_sort(
    seed: int, size: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    values = np.random.default_rng(seed).normal(0.0, spread, size).astype(np.float32)
    logits = torch.from_numpy(values)
    weights = torch.exp(logits - logits.max()).double().numpy()
    order = np.argsort(-values, kind="stable")
    kept = len(order)
    if min_p > 0.0:
        lowest = np.float32(float(values.max()) + math.log(min_p))
        kept = int((values[order] >= lowest).sum())
    if top_k > 0:
        kept = min(kept, top_k)
    if top_p < 1.0:
        cumulative = weights[order][:kept].cumsum()
        # Not the draw's own order of additions: stay away from its edges.
        near = np.abs(cumulative - top_p * cumulative[-1]) < 1e-9
        if near.any():
            return
        kept = int((cumulative < top_p * cumulative[-1]).sum()) + 1
    expected = values >= values[order[kept - 1]]
    found = survivors(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    assert found == np.flatnonzero(expected).tolist()
