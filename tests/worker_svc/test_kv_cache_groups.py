"""How the layers of known models come together in groups."""

from __future__ import annotations

import pytest

from worker_svc.kv_cache_groups import KvCacheGroup, kv_cache_groups


def shape(*windows: int | None) -> list[tuple[int, int]]:
    """Number of layers and window of each group."""
    groups = kv_cache_groups(windows)
    layers = sorted(layer for group in groups for layer in group.layers)
    assert layers == list(range(len(windows)))
    assert all(windows[layer] == (g.sliding_window or None) for g in groups for layer in g.layers)
    return [(len(group.layers), group.sliding_window) for group in groups]


def test_layers_of_one_kind_are_one_group() -> None:
    assert shape(*[None] * 30) == [(30, 0)]
    assert shape(*[4096] * 32) == [(32, 4096)]


def test_halves_are_two_groups() -> None:
    assert shape(*[4096, None] * 13) == [(13, 4096), (13, 0)]


@pytest.mark.parametrize(("num_layers", "full", "last"), [(30, 5, 5), (12, 2, 2)])
def test_five_sliding_layers_to_a_full_one_are_six_groups(
    num_layers: int, full: int, last: int
) -> None:
    windows = [None if layer % 6 == 5 else 512 for layer in range(num_layers)]
    assert shape(*windows) == [(last, 512)] * 5 + [(full, 0)]


def test_what_does_not_divide_is_filled_up() -> None:
    # 26 layers, 4 of them full: 22 sliding ones in 6 groups of at most 4.
    windows = [None if layer % 6 == 5 else 512 for layer in range(26)]
    assert shape(*windows) == [(4, 512)] * 4 + [(3, 512)] * 2 + [(4, 0)]


def test_kinds_of_nearly_equal_counts_are_not_split() -> None:
    assert shape(*[128] * 12, *[None] * 13) == [(12, 128), (13, 0)]
    assert shape(*[128] * 2, *[None] * 3) == [(2, 128), (2, 0), (1, 0)]


def test_layers_are_dealt_out_in_turn() -> None:
    assert kv_cache_groups([None, 8, 8, 8]) == (
        KvCacheGroup((0,), 0),
        KvCacheGroup((1,), 8),
        KvCacheGroup((2,), 8),
        KvCacheGroup((3,), 8),
    )
    assert kv_cache_groups([8, None, 8, 8, None, 8])[:2] == (
        KvCacheGroup((0, 3), 8),
        KvCacheGroup((2, 5), 8),
    )


def test_windows_of_different_lengths_are_kinds_of_their_own() -> None:
    assert shape(8, 16, 8, 16) == [(2, 8), (2, 16)]
