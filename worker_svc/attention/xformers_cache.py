"""The KV cache in the shape that xformers' operators read, and queries in theirs.

Owns the padding of heads to a size of the kernel's, and the spare slot behind the last block that
padding rows of a graph are written to. Knows nothing of steps.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from worker_svc.attention.base import AttentionSpec
from worker_svc.attention.support import padded_head_dim


class XformersCache:
    """A tensor a layer and kind: [num_blocks * block_size + 1, num_kv_heads, padded head_dim]."""

    def __init__(
        self,
        spec: AttentionSpec,
        dtype: torch.dtype,
        device: torch.device,
        num_blocks: int,
        block_size: int,
    ) -> None:
        self.spec = spec
        self.block_size = block_size
        self.spare_slot = num_blocks * block_size
        """Written by whoever has none; never read."""
        self._head_dim = padded_head_dim(spec.head_dim)
        self._padding = self._head_dim - spec.head_dim
        shape = (self.spare_slot + 1, spec.num_kv_heads, self._head_dim)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]
            for _ in range(2)
        )

    def has_size(self, num_blocks: int, block_size: int) -> bool:
        return (self.spare_slot, self.block_size) == (num_blocks * block_size, block_size)

    def clear(self) -> None:
        """Back to zeros, in the same memory."""
        for tensor in (*self.keys, *self.values):
            tensor.zero_()

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Put the first tokens of a step, as many as there are `slots` [n] int64, there."""
        num_tokens = len(slots)
        self.keys[layer].index_copy_(0, slots, self._padded(key[:num_tokens]))
        self.values[layer].index_copy_(0, slots, self._padded(value[:num_tokens]))

    def all_blocks(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all blocks as the operators take them."""
        end = self.spare_slot
        return self._grouped(self.keys[layer][:end]), self._grouped(self.values[layer][:end])

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of the keys and values at `slots` as the operators take them."""
        return self._grouped(self.keys[layer][slots]), self._grouped(self.values[layer][slots])

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_heads, head_dim] to [num_tokens, num_kv_heads, group, padded size]."""
        shape = (-1, self.spec.num_kv_heads, self.spec.group_size, self._head_dim)
        return self._padded(query).reshape(shape)

    def heads(self, attended: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """What the operators give, [1, n, ...], as [num_tokens, num_heads, head_dim]."""
        return attended[0, :num_tokens, :, :, : self.spec.head_dim].flatten(1, 2)

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        return functional.pad(values, (0, self._padding)) if self._padding else values

    def _grouped(self, cache: torch.Tensor) -> torch.Tensor:
        """[1, num_keys, num_kv_heads, group_size, head_dim], a view: as the operators take GQA."""
        return cache[None, :, :, None].expand(-1, -1, -1, self.spec.group_size, -1)
