from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.worker_svc.attention.paged_cache import PagedCache
from worker_svc.attention.base import AttentionSpec
from worker_svc.cpu.kernels import Kernels, Pool
from worker_svc.cpu.paged_attention import CpuAttentionBackend

NUM_BLOCKS = 100
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 200)
ROUNDING = 4e-3
"""Keys and values are kept as float16."""


def make_cache(
    kernels: Kernels,
    lengths: Sequence[int],
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 32,
    block_size: int = 16,
    window: int | None = None,
    num_threads: int = 2,
) -> PagedCache:
    spec = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, (window,))
    backend = CpuAttentionBackend(kernels, Pool(kernels, num_threads), spec)
    return PagedCache(backend, spec, lengths, block_size=block_size, num_blocks=NUM_BLOCKS)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 128), (8, 2, 80), (7, 1, 80)]
)
@pytest.mark.parametrize("window", [None, 1, 5, 70])
@pytest.mark.parametrize("block_size", [16, 128])
def test_prefill_and_decode_agree_with_plain_attention(
    kernels: Kernels, heads: int, kv_heads: int, head_dim: int, window: int | None, block_size: int
) -> None:
    cache = make_cache(
        kernels,
        LENGTHS,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        window=window,
    )
    prefixes = [(i, 0, length - 1) for i, length in enumerate(LENGTHS) if length > 1]
    lasts = [(i, length - 1, length) for i, length in enumerate(LENGTHS)]
    for (index, start, end), output in zip(
        sorted(prefixes) + sorted(lasts), cache.step(prefixes) + cache.step(lasts), strict=True
    ):
        expected = cache.expected(index)[start:end]
        torch.testing.assert_close(output, expected, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("chunk", [1, 7, 64, 130])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_chunks_give_the_bits_of_the_whole(
    kernels: Kernels, chunk: int, window: int | None, num_threads: int
) -> None:
    cache = make_cache(kernels, (200, 90), window=window, num_threads=num_threads)
    whole, _ = cache.step([(0, 0, 200), (1, 0, 90)])
    cache.backend.allocate_kv_cache(NUM_BLOCKS, 16)
    parts = [cache.step([(0, start, min(start + chunk, 200))])[0] for start in range(0, 200, chunk)]
    assert torch.equal(torch.cat(parts), whole)


def test_padding_tokens_write_nothing(kernels: Kernels) -> None:
    cache = make_cache(kernels, (5,))
    [output] = cache.step([(0, 0, 5)], num_padding=3)
    torch.testing.assert_close(output, cache.expected(0), atol=ROUNDING, rtol=ROUNDING)


def test_nan_in_slots_of_others_is_not_seen(kernels: Kernels) -> None:
    cache = make_cache(kernels, (5, 130))
    backend = cache.backend
    assert isinstance(backend, CpuAttentionBackend)
    assert backend.data is not None
    backend.data.fill_(torch.nan)  # A sequence writes its own slots first.
    outputs = cache.step([(0, 0, 4), (1, 0, 129)]) + cache.step([(0, 4, 5), (1, 129, 130)])
    assert all(bool(output.isfinite().all()) for output in outputs)


@pytest.mark.parametrize(("window", "seen_until"), [(None, 20), (5, 17)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_the_queries_that_see_it(
    kernels: Kernels, window: int | None, seen_until: int, bad: float
) -> None:
    cache = make_cache(kernels, (20,), heads=4, window=window)
    [good] = cache.step([(0, 0, 20)])
    cache.sequences[0].value[12, 1, 3] = bad
    [spoiled] = cache.step([(0, 0, 20)])
    by_head = spoiled.view(20, 4, 32)
    assert not by_head[12:seen_until, 2:, 3].isfinite().any()  # the heads of KV head 1
    for queries in (slice(0, 12), slice(seen_until, 20)):
        assert torch.equal(spoiled[queries], good[queries])
    [last] = cache.step([(0, 19, 20)])
    torch.testing.assert_close(last, spoiled[19:], rtol=0, atol=0, equal_nan=True)


def test_tensors_of_graphs_give_a_plain_step(kernels: Kernels) -> None:
    cache = make_cache(kernels, (17, 33))
    cache.step([(0, 0, 16), (1, 0, 32)])
    outputs = cache.decode([(1, 32, 33), (0, 16, 17)], num_rows=4, width=3)
    for index, output in zip((1, 0), outputs, strict=True):
        torch.testing.assert_close(output, cache.expected(index)[-1:], atol=ROUNDING, rtol=ROUNDING)


def test_a_step_without_a_cache_says_what_to_call(kernels: Kernels) -> None:
    cache = make_cache(kernels, (5,))
    cache.backend.free_kv_cache()
    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        cache.step([(0, 0, 5)])


def test_shapes_that_the_kernels_cannot_do_are_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="heads have 24 values"):
        make_cache(kernels, (5,), head_dim=24)
    with pytest.raises(ValueError, match="block-size 8"):
        make_cache(kernels, (5,), block_size=8)
