"""The xformers backend against the torch backend, kernels in Triton's interpreter.

The interpreter takes tens of milliseconds a program and tile, so sequences and heads are few here;
`test_xformers_long.py` has the long forms. `conftest.py` says how the interpreter gets its
environment.
"""

from __future__ import annotations

import pytest
import torch

from tests.worker_svc.attention.xformers_pairs import BackendPair

pytestmark = [
    pytest.mark.timeout(400),
    # Of the interpreter, which converts arrays as numpy before 2.4 allowed.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16]
GROUPINGS = [(2, 2), (6, 2), (4, 1)]
"""(query heads, KV heads): multi-head, grouped-query, multi-query."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPINGS)
def test_decode(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    pair = BackendPair((1, 17, 32), heads=heads, kv_heads=kv_heads, dtype=dtype)
    pair.check([(0, 0, 1), (1, 16, 17), (2, 31, 32)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), GROUPINGS)
def test_verification_of_drafts(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    pair = BackendPair((4, 18, 33), heads=heads, kv_heads=kv_heads, dtype=dtype)
    pair.check([(0, 0, 4), (1, 14, 18), (2, 29, 33)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_a_prompt(dtype: torch.dtype) -> None:
    pair = BackendPair((52,), dtype=dtype)
    pair.check([(0, 0, 19)])
    pair.check([(0, 19, 52)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_step_with_padding(dtype: torch.dtype) -> None:
    pair = BackendPair((20, 7, 3, 40, 9), heads=4, kv_heads=2, dtype=dtype)
    pair.check([(0, 19, 20), (1, 6, 7), (2, 0, 3), (3, 22, 40), (4, 6, 9)], num_padding=3)
    for cache in (pair.backend.cache.keys[0], pair.backend.cache.values[0]):
        assert not cache[:16].any()  # the null block


@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 128, 200, 256])
def test_head_sizes_are_native_or_padded(head_dim: int) -> None:
    pair = BackendPair((20, 6), head_dim=head_dim)
    pair.check([(0, 19, 20), (1, 3, 6)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 5, 16, 23])
def test_the_edge_of_a_window_lies_inside_a_block(window: int, dtype: torch.dtype) -> None:
    """Decode, drafts and a chunk; the first position seen is a block's first, last or between."""
    pair = BackendPair((45, 39, 21), window=window, dtype=dtype)
    pair.check([(0, 44, 45), (1, 36, 39), (2, 17, 21)])


@pytest.mark.parametrize("window", [None, 70])
def test_blocks_of_64(window: int | None) -> None:
    pair = BackendPair((130, 63, 70, 17), block_size=64, window=window)
    last = (3, 14, 17) if window else (3, 0, 17)  # a window computes token by token
    pair.check([(0, 129, 130), (1, 60, 63), (2, 68, 70), last])


@pytest.mark.parametrize("window", [None, 20])
def test_calls_padded_to_few_shapes(window: int | None) -> None:
    pair = BackendPair((20, 45, 5), window=window, pad_calls=True)
    pair.check([(0, 19, 20), (1, 44, 45), (2, 4, 5)])
    if window is None:
        pair.check([(0, 17, 20), (1, 42, 45), (2, 2, 5)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 9, 20])
def test_long_rows_over_gathered_pages(window: int | None, dtype: torch.dtype) -> None:
    """All but the kernel, for which a reference stands in; it needs a GPU."""
    pair = BackendPair(
        (60, 17, 90, 30), kv_heads=2, window=window, dtype=dtype, gather_prefill=True
    )
    pair.check([(0, 23, 60), (1, 0, 17), (2, 40, 90)])
    pair.check([(2, 40, 90), (3, 29, 30)])


def test_a_query_has_the_same_bits_whatever_its_batch_mates() -> None:
    """Keys of part of a split, of two and a bit, and of four and a bit."""
    lengths = (310, 1030, 2100)
    lasts = [(index, length - 1, length) for index, length in enumerate(lengths)]
    [short] = BackendPair(lengths, block_size=64).check(lasts[:1])
    [middle] = BackendPair(lengths, block_size=64).check(lasts[1:2])
    beside_longer = BackendPair(lengths, block_size=64).check(lasts)
    assert torch.equal(beside_longer[0], short)
    assert torch.equal(beside_longer[1], middle)
    beside_shorter = BackendPair(lengths, block_size=64, pad_calls=True).check(lasts[:2])
    assert torch.equal(beside_shorter[0], short)
    assert torch.equal(beside_shorter[1], middle)


@pytest.mark.parametrize("window", [None, 4])
def test_nan_in_slots_of_others_is_not_seen(window: int | None) -> None:
    pair = BackendPair((5, 21), window=window)
    for tensor in (pair.backend.cache.keys[0], pair.backend.cache.values[0]):
        tensor[16:] = torch.nan  # All but the null block; both rows' blocks have a rest.
    pair.check([(0, 4, 5), (1, 20, 21)])


def test_padded_heads_cost_memory() -> None:
    assert BackendPair((1,), head_dim=64).backend.kv_bytes_per_block(16) == 2 * 16 * 64 * 4
    assert BackendPair((1,), head_dim=80).backend.kv_bytes_per_block(16) == 2 * 16 * 128 * 4


def test_a_step_without_a_cache_says_what_to_call() -> None:
    pair = BackendPair((5,))
    pair.backend.free_kv_cache()
    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        pair.xformers.step([(0, 0, 5)])
