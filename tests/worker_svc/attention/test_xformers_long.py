"""Random steps on random shapes: the long form of `test_xformers_backend.py`."""

from __future__ import annotations

import random

import pytest
import torch

from tests.worker_svc.attention.paged_cache import Part
from tests.worker_svc.attention.xformers_pairs import BackendPair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("seed", range(24))
def test_random_steps(seed: int, dtype: torch.dtype) -> None:
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    lengths = [rng.randint(1, 150) for _ in range(rng.randint(1, 6))]
    pair = BackendPair(
        lengths,
        heads=kv_heads * rng.choice([1, 2, 3, 7]),
        kv_heads=kv_heads,
        head_dim=rng.choice([16, 40, 64, 80, 96, 128]),
        block_size=rng.choice([16, 32, 64]),
        window=rng.choice([None, None, 1, 7, 33, 64]),
        dtype=dtype,
        gather_prefill=rng.random() < 0.3,
        pad_calls=rng.random() < 0.3,
    )
    for _ in range(3):
        parts = [random_part(rng, index, length) for index, length in enumerate(lengths)]
        pair.check(parts, num_padding=rng.randint(0, 3))


def random_part(rng: random.Random, index: int, length: int) -> Part:
    """One token, drafts, or a chunk, anywhere in the sequence."""
    end = rng.randint(1, length)
    num_tokens = rng.choice([1, rng.randint(2, 6), rng.randint(1, 60)])
    return index, max(0, end - num_tokens), end
