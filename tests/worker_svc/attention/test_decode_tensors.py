"""Single tokens in tensors that stay where they are, against plain steps of the same backend."""

from __future__ import annotations

import pytest
import torch

from tests.worker_svc.attention.paged_cache import PagedCache
from tests.worker_svc.attention.xformers_pairs import BackendPair
from worker_svc.attention.base import AttentionSpec, DecodeTensors
from worker_svc.attention.torch_backend import TorchAttentionBackend

# Of the interpreter, which converts arrays as numpy before 2.4 allowed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PARTS = [(2, 44, 45), (0, 17, 18), (1, 5, 6)]
LENGTHS = (18, 6, 45)
"""The parts are in falling order of length, as steps are."""


@pytest.mark.parametrize("window", [None, 5, 20])
@pytest.mark.parametrize("num_rows", [3, 4, 6])
def test_xformers_gives_the_bits_of_a_step(window: int | None, num_rows: int) -> None:
    pair = BackendPair(LENGTHS, kv_heads=2, window=window, pad_calls=True)
    by_part = dict(zip(sorted(PARTS), pair.check(PARTS), strict=True))
    outputs = pair.xformers.decode(PARTS, num_rows, width=32)
    for part, output in zip(PARTS, outputs, strict=True):
        assert torch.equal(output, by_part[part])
    for tensor in (pair.backend.cache.keys[0], pair.backend.cache.values[0]):
        assert not tensor[:16].any()  # the null block


def test_xformers_keeps_the_memory_of_a_cache_of_the_same_size() -> None:
    pair = BackendPair(LENGTHS)
    before = pair.backend.cache
    before.keys[0].fill_(1.0)
    pair.backend.allocate_kv_cache(64, 16)
    assert pair.backend.cache is before
    assert not before.keys[0].any()
    pair.backend.allocate_kv_cache(63, 16)
    assert pair.backend.cache is not before


@pytest.mark.parametrize("window", [None, 5])
def test_torch_gives_the_bits_of_a_step(window: int | None) -> None:
    spec = AttentionSpec(4, 2, 16, 0.25, (window,))
    cache = PagedCache(TorchAttentionBackend(spec, torch.float32), spec, LENGTHS, block_size=16)
    cache.step([(index, 0, length - 1) for index, length in enumerate(LENGTHS)])
    by_part = dict(zip(sorted(PARTS), cache.step(PARTS), strict=True))
    for part, output in zip(PARTS, cache.decode(PARTS, 5, width=8), strict=True):
        assert torch.equal(output, by_part[part])


def test_torch_says_what_comes_first() -> None:
    spec = AttentionSpec(4, 2, 16, 0.25, (None,))
    cache = PagedCache(TorchAttentionBackend(spec, torch.float32), spec, LENGTHS, block_size=16)
    zeros = torch.zeros(1, dtype=torch.int32)
    decode = cache.backend.prepare_decode(DecodeTensors(zeros, zeros[None], zeros))
    with pytest.raises(RuntimeError, match="refresh"):
        decode(0, *[torch.zeros(1, 4, 16)] * 3)
