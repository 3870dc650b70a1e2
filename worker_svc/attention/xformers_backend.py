"""Paged attention by xformers: the split-K operator through block tables, prefill over pages.

Decode, verification and short chunks go through the block tables; longer rows are computed over
keys gathered from their pages, or, where that kernel does not run (a CPU) or must not
(`batch_invariant`), in pieces through the block tables. Owns the KV cache; which rows go where is
in `xformers_plan`, the tensors of a step are in `xformers_calls`.

A query's keys are added up in tiles from the first position it sees, in splits of a fixed size: in
one order whatever the batch. Not so over gathered pages, where the kernel of the device decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from worker_svc.attention.base import AttentionMetadata, AttentionSpec
from worker_svc.attention.support import padded_head_dim
from worker_svc.attention.xformers_calls import CallFactory, StepCalls
from worker_svc.attention.xformers_operators import XformersOperators
from worker_svc.attention.xformers_plan import plan_step


@dataclass(frozen=True, slots=True)
class XformersSettings:
    """What depends on the device and on how equal numbers must be."""

    device: torch.device
    gather_prefill: bool
    """Long rows by another kernel over gathered pages; else in pieces through block tables."""
    pad_calls: bool
    """Few shapes of calls, for a kernel that is compiled for each."""

    @classmethod
    def for_device(cls, device: torch.device, *, batch_invariant: bool) -> XformersSettings:
        on_cuda = device.type == "cuda"
        return cls(device, gather_prefill=on_cuda and not batch_invariant, pad_calls=on_cuda)


class XformersAttentionBackend:
    """KV cache as one tensor a layer and kind: [num_blocks * block_size, num_kv_heads, head_dim].

    `head_dim` is that of the kernel: the model's is padded with zeros, which change no result.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        dtype: torch.dtype,
        operators: XformersOperators,
        settings: XformersSettings,
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        self._operators = operators
        self._settings = settings
        self._head_dim = padded_head_dim(spec.head_dim)
        self._block_size = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def kv_bytes_per_block(self, block_size: int) -> int:
        spec = self._spec
        values = spec.num_layers * block_size * spec.num_kv_heads * self._head_dim
        return 2 * values * self._dtype.itemsize

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        self.free_kv_cache()
        shape = (num_blocks * block_size, self._spec.num_kv_heads, self._head_dim)
        self._keys, self._values = (
            [
                torch.zeros(shape, dtype=self._dtype, device=self._settings.device)
                for _ in range(self._spec.num_layers)
            ]
            for _ in range(2)
        )
        self._block_size = block_size

    def free_kv_cache(self) -> None:
        self._keys, self._values = [], []

    def begin_step(self, metadata: AttentionMetadata) -> XformersStepAttention:
        if not self._keys:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        factory = CallFactory(
            self._operators,
            metadata.block_tables,
            self._block_size,
            pad=self._settings.pad_calls,
        )
        calls = {}
        for window in set(self._spec.sliding_windows):
            plan = plan_step(
                metadata.seq_lens,
                metadata.query_start_loc,
                window=window,
                block_size=self._block_size,
                gather=self._settings.gather_prefill,
            )
            calls[window] = factory.make(plan, window)
        num_tokens = metadata.query_start_loc[-1]
        slots = metadata.slot_mapping[:num_tokens]  # Padding tokens, which have none, come last.
        return XformersStepAttention(
            self._spec, self._operators, self._keys, self._values, slots, calls
        )


class XformersStepAttention:
    """One step over the caches of `XformersAttentionBackend`."""

    def __init__(
        self,
        spec: AttentionSpec,
        operators: XformersOperators,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        slots: torch.Tensor,
        calls: dict[int | None, StepCalls],
    ) -> None:
        self._spec = spec
        self._operators = operators
        self._keys = keys
        self._values = values
        self._slots = slots
        self._calls = calls
        self._head_dim = keys[0].shape[-1]
        self._padding = self._head_dim - spec.head_dim

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        self._write(self._keys[layer], key)
        self._write(self._values[layer], value)
        keys, values = self._grouped(self._keys[layer]), self._grouped(self._values[layer])
        queries = self._padded(query)  # [num_tokens, num_heads, head_dim]
        queries = queries.reshape(
            -1, self._spec.num_kv_heads, self._spec.group_size, self._head_dim
        )
        output = torch.zeros_like(query)  # Padding tokens belong to no row and stay zero.
        calls, scale = self._calls[self._spec.sliding_windows[layer]], self._spec.scale
        for paged in calls.paged:
            part = queries[paged.tokens][None]  # [1, num_tokens, num_kv_heads, group, head_dim]
            attended = self._operators.attend_paged(part, keys, values, paged.bias, scale)
            self._put(output, paged.tokens[: paged.num_tokens], attended)
        for gathered in calls.gathered:
            attended = self._operators.attend_gathered(
                queries[gathered.tokens][None],
                self._grouped(self._keys[layer][gathered.slots]),
                self._grouped(self._values[layer][gathered.slots]),
                gathered.bias,
                scale,
            )
            self._put(output, gathered.tokens, attended)
        return output.flatten(1)

    def _write(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        cache.index_copy_(0, self._slots, self._padded(new[: self._slots.shape[0]]))

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        return functional.pad(values, (0, self._padding)) if self._padding else values

    def _grouped(self, cache: torch.Tensor) -> torch.Tensor:
        """[1, num_keys, num_kv_heads, group_size, head_dim], a view: as the operators take GQA."""
        return cache[None, :, :, None].expand(-1, -1, -1, self._spec.group_size, -1)

    def _put(self, output: torch.Tensor, tokens: torch.Tensor, attended: torch.Tensor) -> None:
        heads = attended[0, : tokens.shape[0], :, :, : self._spec.head_dim].flatten(1, 2)
        output.index_copy_(0, tokens, heads)
