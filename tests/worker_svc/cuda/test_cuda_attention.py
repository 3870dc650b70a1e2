"""The xformers backend on a CUDA device against the torch backend on it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.worker_svc.attention.xformers_pairs import BackendPair
from tests.worker_svc.cuda.devices import CUDA, needs_cuda, of_triton
from worker_svc.attention.xformers_operators import XformersOperators

pytestmark = [needs_cuda, of_triton]

DTYPES = [torch.float16, torch.bfloat16]
GROUPINGS = [(4, 4), (9, 3), (8, 2), (8, 1)]
"""(query heads, KV heads): multi-head, grouped-query, multi-query."""
HEAD_DIMS = [64, 80, 128, 256]
LENGTHS = (1, 17, 300, 700, 1030, 33)


@cache
def operators() -> XformersOperators:
    return XformersOperators(interpret=False)


def make_pair(
    lengths: tuple[int, ...] = LENGTHS,
    *,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    gather_prefill: bool = True,
) -> BackendPair:
    return BackendPair(
        lengths,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        window=window,
        dtype=dtype,
        gather_prefill=gather_prefill,
        pad_calls=True,
        device=CUDA,
        operators=operators(),
    )


def last_tokens(num_tokens: int) -> list[tuple[int, int, int]]:
    return [(i, n - num_tokens, n) for i, n in enumerate(LENGTHS) if n >= num_tokens]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPINGS)
@pytest.mark.parametrize("block_size", [16, 64])
def test_xformers_decode_on_cuda(
    heads: int, kv_heads: int, block_size: int, dtype: torch.dtype
) -> None:
    pair = make_pair(heads=heads, kv_heads=kv_heads, block_size=block_size, dtype=dtype)
    pair.check(last_tokens(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_xformers_head_sizes_on_cuda(head_dim: int, dtype: torch.dtype) -> None:
    pair = make_pair(head_dim=head_dim, dtype=dtype)
    pair.check(last_tokens(1))
    pair.check(last_tokens(5))
    pair.check([(2, 100, 300), (3, 0, 700)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPINGS)
def test_xformers_verification_on_cuda(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    pair = make_pair(heads=heads, kv_heads=kv_heads, dtype=dtype)
    pair.check(last_tokens(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPINGS)
@pytest.mark.parametrize("gather_prefill", [True, False])
def test_xformers_prefill_on_cuda(
    heads: int, kv_heads: int, gather_prefill: bool, dtype: torch.dtype
) -> None:
    pair = make_pair(heads=heads, kv_heads=kv_heads, dtype=dtype, gather_prefill=gather_prefill)
    pair.check([(4, 0, 1030), (2, 0, 300), (1, 0, 17)])
    pair.check([(4, 517, 1030), (3, 640, 700)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("window", [1, 16, 100, 600])
def test_xformers_windows_on_cuda(window: int, block_size: int, dtype: torch.dtype) -> None:
    pair = make_pair(window=window, block_size=block_size, dtype=dtype)
    pair.check(last_tokens(1))
    pair.check(last_tokens(3))
    pair.check([(4, 0, 1030), (3, 200, 700), (1, 16, 17)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_xformers_mixed_step_with_padding_on_cuda(dtype: torch.dtype) -> None:
    pair = make_pair(dtype=dtype)
    parts = [(0, 0, 1), (1, 16, 17), (2, 290, 300), (3, 10, 700), (4, 1026, 1030)]
    pair.check(parts, num_padding=3)
    for tensor in (pair.backend.cache.keys[0], pair.backend.cache.values[0]):
        assert not tensor[:16].any()  # the null block


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_xformers_decode_of_a_graph_is_that_of_a_step(
    window: int | None, dtype: torch.dtype
) -> None:
    pair = make_pair(window=window, dtype=dtype)
    parts = last_tokens(1)
    expected = pair.check(parts)
    for output, one in zip(pair.xformers.decode(parts, 8, 128), expected, strict=True):
        torch.testing.assert_close(output, one, atol=0.0, rtol=0.0)
