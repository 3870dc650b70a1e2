from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.worker_svc.attention.paged_cache import PagedCache
from worker_svc.attention.base import AttentionSpec
from worker_svc.attention.torch_backend import TorchAttentionBackend

HEAD_DIM = 16
NUM_BLOCKS = 400


class Cache(PagedCache):
    """Of the torch backend."""

    backend: TorchAttentionBackend

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        heads: int,
        kv_heads: int,
        block_size: int,
        window: int | None,
    ) -> None:
        spec = AttentionSpec(heads, kv_heads, HEAD_DIM, HEAD_DIM**-0.5, (window,))
        backend = TorchAttentionBackend(spec, torch.float32)
        super().__init__(backend, spec, lengths, block_size=block_size, num_blocks=NUM_BLOCKS)


LENGTHS = (1, 2, 15, 16, 17, 127, 128, 129, 300)
SHAPES = [(4, 4), (6, 2), (4, 1)]


@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("window", [None, 1, 5, 130])
@pytest.mark.parametrize("block_size", [8, 16])
def test_prefill_and_decode_agree_with_plain_attention(
    heads: int, kv_heads: int, window: int | None, block_size: int
) -> None:
    cache = Cache(LENGTHS, heads=heads, kv_heads=kv_heads, block_size=block_size, window=window)
    prefixes = [(i, 0, length - 1) for i, length in enumerate(LENGTHS) if length > 1]
    lasts = [(i, length - 1, length) for i, length in enumerate(LENGTHS)]
    for (index, start, end), output in zip(
        sorted(prefixes) + sorted(lasts), cache.step(prefixes) + cache.step(lasts), strict=True
    ):
        torch.testing.assert_close(output, cache.expected(index)[start:end], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("chunk", [1, 7, 64, 130])
def test_chunks_give_what_the_whole_gives(chunk: int, window: int | None) -> None:
    cache = Cache((300,), heads=6, kv_heads=2, block_size=16, window=window)
    [whole] = cache.step([(0, 0, 300)])
    cache.backend.allocate_kv_cache(NUM_BLOCKS, 16)
    parts = [cache.step([(0, start, min(start + chunk, 300))])[0] for start in range(0, 300, chunk)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=1e-6)


def test_padding_tokens_write_nothing() -> None:
    cache = Cache((5,), heads=4, kv_heads=2, block_size=8, window=None)
    [output] = cache.step([(0, 0, 5)], num_padding=3)
    torch.testing.assert_close(output, cache.expected(0), atol=2e-5, rtol=2e-5)
    assert not cache.backend._keys[0][0].any()


def test_nan_in_slots_of_others_is_not_seen() -> None:
    cache = Cache((5, 130), heads=4, kv_heads=2, block_size=8, window=None)
    for tensor in (cache.backend._keys[0], cache.backend._values[0]):
        tensor[1:] = torch.nan  # All but the null block; a sequence writes its own slots first.
    outputs = cache.step([(0, 0, 4), (1, 0, 129)]) + cache.step([(0, 4, 5), (1, 129, 130)])
    assert all(bool(output.isfinite().all()) for output in outputs)


@pytest.mark.parametrize(("window", "seen_until"), [(None, 20), (5, 17)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_the_queries_that_see_it(
    window: int | None, seen_until: int, bad: float
) -> None:
    cache = Cache((20,), heads=4, kv_heads=2, block_size=8, window=window)
    [good] = cache.step([(0, 0, 20)])
    cache.sequences[0].value[12, 1, 3] = bad
    [spoiled] = cache.step([(0, 0, 20)])
    by_head = spoiled.view(20, 4, HEAD_DIM)
    assert not by_head[12:seen_until, 2:].isfinite().any()  # the heads of KV head 1
    for queries in (slice(0, 12), slice(seen_until, 20)):
        assert torch.equal(spoiled[queries], good[queries])


def test_a_step_without_a_cache_says_what_to_call() -> None:
    cache = Cache((5,), heads=4, kv_heads=2, block_size=8, window=None)
    cache.backend.free_kv_cache()
    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        cache.step([(0, 0, 5)])
