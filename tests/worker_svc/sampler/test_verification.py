from __future__ import annotations

import numpy as np
import pytest

from worker_svc.sampler.verification import count_verified
from worker_svc.step import NAN_LOGITS


@pytest.mark.parametrize(
    ("drawn", "drafts", "num_tokens"),
    [
        ([5, 6, 7], [5, 6], 3),
        ([5, 6, 7], [5, 9], 2),
        ([5, 6, 7], [9, 6], 1),
        ([5, 6, 7], [9, 9], 1),
        ([5], [], 1),
    ],
)
def test_tokens_count_up_to_the_first_that_is_not_its_draft(
    drawn: list[int], drafts: list[int], num_tokens: int
) -> None:
    failures = [None] * len(drawn)
    counted = count_verified(np.array(drawn), failures, np.array(drafts, dtype=np.int32))
    assert counted == (num_tokens, None)


@pytest.mark.parametrize(
    ("failed", "drafts", "counted"),
    [
        (0, [5, 6], (0, NAN_LOGITS)),
        (1, [5, 6], (1, NAN_LOGITS)),
        (1, [5, 9], (1, NAN_LOGITS)),
        (2, [5, 6], (2, NAN_LOGITS)),
        (1, [9, 6], (1, None)),
        (2, [5, 9], (2, None)),
    ],
)
def test_a_failure_counts_where_its_token_would(
    failed: int, drafts: list[int], counted: tuple[int, object]
) -> None:
    failures = [NAN_LOGITS if place == failed else None for place in range(3)]
    drawn, ids = np.array([5, 6, 7]), np.array(drafts, dtype=np.int32)
    assert count_verified(drawn, failures, ids) == counted
