from __future__ import annotations

import pytest
import torch

from pagewire.sampling_params import SamplingParams
from tests.e2e.closeness import gap
from worker_svc.sampler.philox import uniforms


def test_greedy_is_the_gap_of_the_two_best_logits() -> None:
    logits = torch.tensor([1.0, 4.0, 3.5, -2.0])
    assert gap(logits, SamplingParams(temperature=0.0), 3) == 0.5


@pytest.mark.parametrize("seed", [0, 1, 7, 2**64 - 1])
def test_sampled_is_the_distance_to_the_nearest_edge_of_the_cdf(seed: int) -> None:
    import numpy as np

    (uniform,) = uniforms(np.array([seed], np.uint64), np.array([5], np.uint64)).tolist()
    # Two tokens of equal weight survive top_p; the third does not.
    logits = torch.tensor([2.0, 2.0, -5.0])
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=seed)
    assert gap(logits, params, 5) == pytest.approx(min(uniform, 1 - uniform, abs(uniform - 0.5)))
