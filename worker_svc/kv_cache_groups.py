"""Which layers of a model share a block table: groups of one window and of equal size.

A pure function of the layers' windows. It knows no blocks and no runner; whoever executes a model
with several groups has a block table for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PADDING_RATIO = 1.5
"""Kinds of layers whose counts differ by less than this make groups of the larger count."""


@dataclass(frozen=True, slots=True)
class KvCacheGroup:
    """Layers whose KV is in the blocks of one table."""

    layers: tuple[int, ...]
    """Indices of the model's layers."""
    sliding_window: int = 0
    """A token sees itself and the `sliding_window - 1` tokens before it; 0: all of them."""


def kv_cache_groups(sliding_windows: Sequence[int | None]) -> tuple[KvCacheGroup, ...]:
    """Split a model's layers into groups, as vLLM does.

    Any block serves any group, so groups should be equally large: the kind of layer that there are
    fewest of decides the size, and the others are split by it (five sliding layers to a full one
    make six groups). Kinds of nearly equal counts are not split; their blocks are filled up.

    Args:
        sliding_windows: One for each layer, at least one; None: it sees all tokens.

    Returns:
        Groups in the order in which their kinds first occur; layers are dealt out in turn.
    """
    kinds: dict[int, list[int]] = {}
    for layer, window in enumerate(sliding_windows):
        kinds.setdefault(window or 0, []).append(layer)
    fewest, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    group_size = most if most < fewest * _PADDING_RATIO else fewest
    groups = []
    for window, layers in kinds.items():
        num_groups = -(-len(layers) // group_size)
        groups += [KvCacheGroup(tuple(layers[i::num_groups]), window) for i in range(num_groups)]
    return tuple(groups)
