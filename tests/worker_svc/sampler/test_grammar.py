from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker_svc.runner_factories import bitmask
from tests.worker_svc.sampler.factories import make_batch, make_row
from worker_svc.sampler.grammar import MaskedRows, apply_masks
from worker_svc.sampler.sampler import Sampler
from worker_svc.step import EMPTY_MASK, NAN_LOGITS


@pytest.mark.parametrize("vocab_size", [16, 17, 23])
def test_bits_are_token_ids_from_the_least_significant(vocab_size: int) -> None:
    logits = torch.zeros(1, vocab_size)
    apply_masks(logits, MaskedRows([0], bitmask([0, 9, vocab_size - 1], vocab_size)[None]))
    assert (logits[0] == 0).nonzero().flatten().tolist() == [0, 9, vocab_size - 1]
    assert bool((logits[0] == -torch.inf).sum() == vocab_size - 3)


def test_bits_past_the_vocabulary_mean_nothing() -> None:
    logits = torch.zeros(1, 10)
    apply_masks(logits, MaskedRows([0], np.array([[0, 0xFE]], dtype=np.uint8)))
    assert (logits[0] == 0).nonzero().flatten().tolist() == [9]


def test_rows_without_a_mask_are_left_alone() -> None:
    logits = torch.arange(40.0).reshape(4, 10)
    before = logits.clone()
    masks = np.stack([bitmask([1], 10), bitmask([2, 3], 10)])
    apply_masks(logits, MaskedRows([2, 0], masks))
    assert torch.equal(logits[[1, 3]], before[[1, 3]])
    assert (logits[2] > -torch.inf).nonzero().flatten().tolist() == [1]
    assert (logits[0] > -torch.inf).nonzero().flatten().tolist() == [2, 3]
    assert torch.equal(logits[0, 2:4], before[0, 2:4])


def test_a_mask_hides_no_nan_and_an_empty_one_is_no_nan() -> None:
    logits = torch.zeros(3, 10)
    logits[0, 4] = torch.nan
    masks = np.stack([bitmask([1], 10), bitmask([], 10), bitmask([7], 10)])
    output = Sampler(()).sample(logits, make_batch([make_row()] * 3), MaskedRows([0, 1, 2], masks))
    assert list(output.failures) == [NAN_LOGITS, EMPTY_MASK, None]
    assert output.token_ids[2] == 7


def test_a_mask_comes_before_what_the_parameters_say() -> None:
    # Penalties and biases lift nothing that the mask forbids.
    row = make_row(temperature=0.0, logit_bias=((3, 100.0), (5, 1.0)), logprobs=2)
    masked = MaskedRows([0], bitmask([4, 5], 10)[None])
    output = Sampler(()).sample(torch.zeros(1, 10), make_batch([row]), masked)
    [logprobs] = output.logprobs
    assert output.token_ids.tolist() == [5]
    assert logprobs is not None
    assert logprobs.logprobs == pytest.approx([-0.6931, -0.6931, -0.6931], abs=1e-4)
